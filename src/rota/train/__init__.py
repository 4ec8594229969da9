"""The API for training scripts: they can be suspended, resized and watched at step boundaries.

    with rota.train.session() as s:
        model, optimizer = s.prepare(model, optimizer)
        for step in s.steps(total):
            loss = ...
            s.report(loss=loss.item(), samples=batch_size)

With batches from ``s.loader`` the training is shared among ranks, whose number may change while it
runs. Without a Rota agent nobody suspends or resizes it and reports go nowhere: the loop runs as an
ordinary loop, alone or on the ranks of another launcher.
"""

from rota.train.session import Session, session

__all__ = ["Session", "session"]
