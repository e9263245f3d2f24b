#!/usr/bin/env bash
# Workers through mpirun, on one machine or on several: bash mpi.sh 4 python train.py
# On several machines: HOSTS=node1,node2 bash mpi.sh 4 python train.py; worker 0 runs on the first.
set -euo pipefail
workers=$1
shift
# On one machine mxkit knows where the workers meet; the port follows from the job, or add it here, like node1:29400.
if [ -n "${HOSTS:-}" ]; then
    export MXKIT_ADDRESS=${MXKIT_ADDRESS:-${HOSTS%%,*}}
fi
if mpirun --version | grep -q "Open MPI\|OpenRTE"; then
    # without --bind-to none each of two workers computes on one core
    exec mpirun -n "$workers" ${HOSTS:+--host "$HOSTS" --map-by node} --oversubscribe --bind-to none \
        ${HOSTS:+-x MXKIT_ADDRESS} "$@"
fi
exec mpiexec -n "$workers" ${HOSTS:+-hosts "$HOSTS" -genv MXKIT_ADDRESS "$MXKIT_ADDRESS"} "$@" # MPICH, Intel MPI
