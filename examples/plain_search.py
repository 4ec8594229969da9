"""Search for hyper-parameters of plain_tuned_mlp.py with Optuna, one trial after another."""

import argparse

import optuna
import torch
from plain_tuned_mlp import train


def parse_args():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=12)
    parser.add_argument("--epochs", type=int, default=12)
    return parser.parse_args()


def suggest(trial):
    return {
        "lr": trial.suggest_float("lr", 1e-3, 1.0, log=True),
        "momentum": trial.suggest_float("momentum", 0.0, 0.99),
        "width": trial.suggest_int("width", 16, 128, step=16),
    }


def main():
    torch.set_num_threads(1)
    args = parse_args()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
    study = optuna.create_study(direction="maximize", study_name="mlp", pruner=pruner)

    def objective(trial):
        best = 0.0
        options = argparse.Namespace(**suggest(trial), epochs=args.epochs, seed=0)
        for epoch, val_acc in enumerate(train(options)):
            best = max(best, val_acc)
            trial.report(val_acc, epoch)
            if trial.should_prune():
                raise optuna.TrialPruned
        return best

    study.optimize(objective, n_trials=args.trials)
    print(f"best val_acc {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
