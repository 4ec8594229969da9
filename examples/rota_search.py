"""Search for hyper-parameters of rota_tuned_mlp.py with Optuna, four trials at once, as jobs."""

import argparse

import optuna

import rota.sweep


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
    args = parse_args()
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=2)
    study = optuna.create_study(direction="maximize", study_name="mlp", pruner=pruner)

    run = "python rota_tuned_mlp.py --lr {lr} --momentum {momentum} --width {width}"
    run += f" --epochs {args.epochs}"
    with rota.sweep.Objective(run, suggest, metric="val_acc") as objective:
        study.optimize(objective, n_trials=args.trials, n_jobs=4)

    print(f"best val_acc {study.best_value:.3f} with {study.best_params}")


if __name__ == "__main__":
    main()
