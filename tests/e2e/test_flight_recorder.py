"""A hang whose ranks left flight-recorder dumps: the rank that stayed away and, by Slurm's own layout, its node."""

import json
from typing import Any

from activities.records import Incident, SymptomKind
from tests.e2e.site import Site

ABSENT = 1


def a_dump(called: int) -> str:
    """What a rank of four recorded that has called so many collectives, as torch writes it in JSON."""
    status = {"last_enqueued_collective": called, "last_started_collective": called, "last_completed_collective": 99}
    return json.dumps({"pg_config": {"0": {"desc": "default", "ranks": "[0, 1, 2, 3]"}}, "pg_status": {"0": status}, "entries": []})


async def hang_of(site: Site, srun: str) -> tuple[Incident, str]:
    """A job of four ranks on two nodes that steps, stands still and leaves dumps; and the node that its absent rank was on."""
    directory = site.runs / "hang"
    directory.mkdir()
    step = f"""
if [ $SLURM_PROCID = 0 ]; then
  for i in 1 2 3 4 5 6 7 8; do echo " iteration $i/ 100 | elapsed time per iteration (ms): 200.0 | lm loss: 2.0E+00 |"; sleep 0.2; done
fi
echo $SLURMD_NODENAME > {directory}/node.$SLURM_PROCID
if [ $SLURM_PROCID = {ABSENT} ]; then dump={directory}/behind; else dump={directory}/waiting; fi
cp $dump $TORCH_FR_DUMP_TEMP_FILE$SLURM_PROCID
sleep 600
"""
    (directory / "behind").write_text(a_dump(99))
    (directory / "waiting").write_text(a_dump(100))
    (directory / "step.sh").write_text(step)
    script = f"#!/bin/bash\nexport TORCH_FR_DUMP_TEMP_FILE={directory}/$SLURM_JOB_ID.fr_\n{srun} bash {directory}/step.sh\n"
    options = ("--nodes=2", "--ntasks-per-node=2", f"--output={directory}/log", "--comment=backstay:mode=observe")
    job_id = await site.slurm.submit_text(script, *options)
    incident = await site.incident(job_id, until=_is_diagnosed)
    return incident, (directory / f"node.{ABSENT}").read_text().strip()


def _is_diagnosed(incident: Incident) -> Any:
    return incident.recommendation


async def test_a_hang_is_diagnosed_by_the_jobs_own_dumps_and_its_absent_rank_placed_by_slurms_layout(site: Site) -> None:
    await site.start_worker()
    incident, node = await hang_of(site, "srun --distribution=cyclic")
    assert incident.symptom.kind is SymptomKind.HANG
    assert f"ranks {ABSENT} of group default: the others called collective 100" in incident.diagnosis.summary
    primary = incident.diagnosis.primary
    assert primary is not None
    assert (primary.rank, primary.node) == (ABSENT, node)
    assert node == incident.nodes[1], "dealt out in turn: in blocks it would be on the first node"
