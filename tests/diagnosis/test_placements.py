"""Which rank runs where, in the words of communicators, launchers and worker lists; and when a launcher's numbers are no ranks."""

from functools import cache

import pytest

from activities.diagnosis.engine import Engine
from activities.diagnosis.placements import Place, Placements, in_blocks, neighbour_of, places_in
from activities.diagnosis.signals import LogSource, Signals

ECC = "RuntimeError: CUDA error: uncorrectable ECC error encountered"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "n2:11:22 [3] NCCL INFO ncclCommInitRank comm 0x1 rank 11 nranks 16 cudaDev 3 nvmlDev 3 busId 5d000 commId 0x2 - Init COMPLETE",
            Place(11, "n2", 3, 16),
        ),
        ("n2:11:22 [0] NCCL INFO comm 0x1 rank 9 nRanks 16 cudaDev 0 nvmlDev 1 busId 2a000 - Init START", Place(9, "n2", 1, 16)),
        ("(T pid=1) - (node_id=ab, ip=10.1.2.8, pid=418) world_rank=5, local_rank=1, node_rank=1", Place(5, "10.1.2.8", 1)),
        ("#  Rank  9 Group  0 Pid   4068 on   guest-7 device  1 [0000:27:00] AMD Instinct MI300X", Place(9, "guest-7", 1)),
        ("[0] MPI startup(): 5       9005     cnx33     {40,41}", Place(5, "cnx33")),
        ("      Rank=45 Node=h100-253-005 Score=0.61", Place(45, "h100-253-005")),
        ("mpirun noticed that process rank 9 with PID 7123 on node fz-2 exited on signal 6 (Aborted).", Place(9, "fz-2")),
        ("=   RANK 5 PID 9005 RUNNING AT cnx33", Place(5, "cnx33")),
        ("Initializing distributed: GLOBAL_RANK: 11, MEMBER: 12/16", Place(11, "n2", is_own=True)),
        ("Global rank 9 (PID 221011) exited with code 1", Place(9, "n2", is_own=True)),
    ],
)
def test_each_way_of_saying_where_a_rank_is(line: str, said: Place) -> None:
    assert list(places_in(line, "n2")) == [said]


def test_deepspeed_and_elastic_name_many_ranks_in_a_line() -> None:
    mapped = "global_rank_mapping=defaultdict(<class 'list'>, {'dg-7': [0, 1], 'dg-3': [2, 3]})"
    assert [(place.rank, place.node, place.device) for place in places_in(mapped, None)] == [
        (0, "dg-7", 0),
        (1, "dg-7", 1),
        (2, "dg-3", 0),
        (3, "dg-3", 1),
    ]
    assert [place.rank for place in places_in("  global_ranks=[8, 9, 10, 11]", "rz23")] == [8, 9, 10, 11]


def test_open_mpis_job_map_puts_processes_under_their_node() -> None:
    placements = Placements()
    for line in (
        " Data for node: c06\tNum slots: 2\tMax slots: 0\tNum procs: 1",
        " \tProcess OMPI jobid: [48431,1] App: 0 Process rank: 3 Bound: N/A",
    ):
        placements.take(line, None, None)
    assert placements.ranks[3].node == "c06"


def nccl(node: str, rank: int, size: int, device: int) -> str:
    place = f"rank {rank} nranks {size} cudaDev {device} nvmlDev {device} busId 1"
    return f"{node}:1:2 [{device}] NCCL INFO ncclCommInitRank comm 0x1 {place} - Init COMPLETE"


def test_groups_that_number_their_ranks_alike_are_not_the_job() -> None:
    placements = Placements()
    for line in (nccl("n1", 0, 2, 0), nccl("n2", 1, 2, 0), nccl("n1", 0, 2, 1), nccl("n2", 1, 2, 1)):
        placements.take(line, line.split(":")[0], None)
    assert placements.world(at_least=2) == {}
    assert Placements(communicators={8: {3: {Place(3, "n1", 3, 8)}}}).world(at_least=16) == {}


def test_blocks_are_refuted_by_one_rank_elsewhere() -> None:
    assert in_blocks([Place(0, "n1"), Place(3, "n1"), Place(4, "n2")], 4)
    assert not in_blocks([Place(0, "n1"), Place(3, "n2")], 4)
    assert not in_blocks([Place(0, "n1"), Place(4, "n1")], 4)


def test_ranks_between_a_nodes_first_and_a_known_one_are_there_too() -> None:
    known = [Place(13, "n2", 5)]
    assert neighbour_of(9, known, None) == "n2"
    assert neighbour_of(7, known, None) is None
    assert neighbour_of(14, known, None) is None
    assert neighbour_of(14, known, 8) == "n2"


@cache
def engine() -> Engine:
    return Engine()


def blamed(log: str, **scheduler: object) -> list[str | None]:
    judgement = engine().judge(Signals(logs=(LogSource(data=log.encode()),), scheduler={"state": "FAILED", **scheduler}))
    return [suspect.node for suspect in judgement.attribution.suspects]


def test_nodes_that_joined_in_another_order_than_slurms_are_found_by_their_neighbours() -> None:
    log = "\n".join([nccl("n4", 0, 32, 0), nccl("n1", 8, 32, 0), nccl("n2", 16, 32, 0), f"[rank9]: {ECC}"])
    assert blamed(log, nodes="n[1-4]") == ["n1"]


def test_a_rank_on_a_node_that_nothing_shows_is_nobodys_where_slurms_order_does_not_hold() -> None:
    log = "\n".join([nccl("n4", 0, 32, 0), nccl("n1", 8, 32, 0), f"[rank17]: {ECC}"])
    assert blamed(log, nodes="n[1-4]") == []


def test_one_agent_a_node_numbers_nodes_and_not_ranks() -> None:
    log = "\n".join(["0: [rank5]: Traceback (most recent call last):", f"2: [rank21]: {ECC}"])
    assert blamed(log, nodes="n[1-4]", ntasks=4) == ["n3"]


def test_labels_seen_from_a_few_tasks_only_tell_no_node() -> None:
    assert blamed(f"0: step 1\n2: {ECC}", nodes="n[1-8]", ntasks=8) == []


def test_what_is_no_node_of_the_job_is_not_blamed() -> None:
    table = "Root Cause (first observed failure):\n[0]:\n  host      : localhost\n  rank      : 5 (local_rank: 1)\n  exitcode  : 1 (pid: 7)"
    assert blamed(f"{ECC}\n{table}", nodes="n[1-4]") == []
    assert blamed(f"{ECC}\n{table}") == []


def test_a_group_s_world_size_does_not_lay_ranks_out() -> None:
    assert blamed(f"data parallel world size: 8\n[rank2]: {ECC}", nodes="n[1-4]") == []
    assert blamed(f"world size: 32\n[rank2]: {ECC}", nodes="n[1-4]") == ["n1"]


def test_an_ec2_node_is_known_by_its_address() -> None:
    assert blamed(f"(RayTrainWorker pid=4, ip=10.0.22.142) {ECC}", nodes="ip-10-0-22-[130,142]") == ["ip-10-0-22-142"]


def test_ranks_are_not_laid_out_in_slurms_order_where_hosts_have_other_names_or_sort_otherwise() -> None:
    log = "\n".join([nccl("4c217144f0b1", 0, 16, 0), nccl("e0a95b6643f4", 8, 16, 0), f"[rank12]: {ECC}"])
    assert blamed(log, nodes="n[1-2]") == []
    log = f"world size: 16\n[rank12]: {ECC}\ntorch.distributed.elastic.multiprocessing.errors.ChildFailedError:"
    assert blamed(log, nodes="n[1-2]") == ["n2"]
    assert blamed(log, nodes="n[9-10]") == []
