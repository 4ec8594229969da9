"""What a training script imports: suspension at step boundaries, and reports of progress.

    with rota.train.session() as s:
        model, optimizer = s.prepare(model, optimizer)
        for step in s.steps(total):
            loss = ...
            s.report(loss=loss.item(), samples=batch_size)

Without a Rota agent all of it is a no-op: the loop runs as an ordinary loop.
"""

from rota.train.session import Session, session

__all__ = ["Session", "session"]
