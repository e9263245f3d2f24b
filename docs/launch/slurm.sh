#!/bin/bash
#SBATCH --job-name=train
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
# One task is one worker: sbatch slurm.sh. SLURM's own variables say which; MXNet's scheduler and servers run beside task 0.
export OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
srun --cpus-per-task="$SLURM_CPUS_PER_TASK" --kill-on-bad-exit=1 python train.py
