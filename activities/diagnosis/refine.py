"""A cause in its context: the same line means different things at start, while saving, on one node of many, or for the third time.

Each rule is a function from the context to another cause, with the reason; the table at the end lists them by the causes they
look at; those of the network are in network.py, of imports in imports.py. Pure; concluding.py asks once the first cause is chosen."""

import re
from collections.abc import Mapping

from activities.diagnosis import imports, network, trends
from activities.diagnosis.causes import Blames, cause_of
from activities.diagnosis.context import Context, Refined, Rule
from activities.diagnosis.scheduler_facts import SchedulerFacts
from activities.diagnosis.signatures import Doing, Turn
from activities.records import Domain, SignalSource


def refine(cause: str, context: Context) -> Refined | None:
    """The first rule for `cause` that has something to say; None leaves it as it is."""
    return next((refined for rule in (*_RULES.get(cause, ()), _by_history) if (refined := rule(context)) is not None), None)


def _by_history(context: Context) -> Refined | None:
    """A device's fault that no line places: on the one node of the job that failed others before."""
    row = cause_of(context.primary.cause or "")
    if row is None or row.domain is not Domain.HARDWARE or row.blames is not Blames.NODE or context.nodes:
        return None
    if (at_node := context.followed) is None:
        return None
    because = "no line says where, and only this node failed other work before"
    return Refined(row.slug, min(context.primary.weight, 0.8), because, names_node=True, evidence=at_node)


# ------------------------------------------------------------------------------------------------- the device or the program


def _segfault(context: Context) -> Refined | None:
    if context.training_ended:
        return Refined("launcher_teardown_hang", 0.75, "the training had ended and was saved; the launcher crashed while it closed down")
    if at_node := context.followed:
        return Refined("flaky_node_segfault", 0.8, "the same node crashed other work before", names_node=True, evidence=at_node)
    return None


def _sigill(context: Context) -> Refined | None:
    if at_node := context.followed:
        because = "other work failed on the same node and passed elsewhere"
        return Refined("faulty_node_sigill", 0.85, because, names_node=True, evidence=at_node)
    count = context.facts.node_count or len(context.facts.nodes)
    if count > 1 and len(context.nodes) == 1 and _every_rank_speaks(context):
        return Refined("faulty_node_sigill", 0.75, f"one of {count} nodes only, though all run the same program")
    return None


def _every_rank_speaks(context: Context) -> bool:
    return len(context.reading.speaking_nodes | context.nodes) > 1 or context.stepped


def _illegal_access(context: Context) -> Refined | None:
    if at_node := context.followed:
        because = "it follows the node: other work failed there before and not elsewhere"
        return Refined("illegal_memory_access_faulty_gpu", 0.82, because, names_node=True, evidence=at_node)
    return None


_NVLINK5 = frozenset({"xid_145_nvlink_fabric", "xid_149_nvlink_link_down", "xid_149_nvlink_netir"})


def _nvlink(context: Context) -> Refined | None:
    named = [item for item in context.observations if item.source is SignalSource.KERNEL and item.cause in _NVLINK5]
    if context.primary.source is not SignalSource.LOG or not named:
        return None
    # Xid 74 is what A100 and H100 call it; NVLink 5 has codes of its own (NVIDIA Xid catalog, 144-150).
    told = max(named, key=lambda item: item.weight)
    return Refined(told.cause or "", context.primary.weight, f"the kernel names it: {told.signature}", names_node=True, evidence=told)


def _earlier_memory_error(context: Context) -> Refined | None:
    busy = any(item.cause in ("gpu_not_clean_at_start", "gpu_reset_required_xid_95") for item in context.observations)
    if context.primary.source is SignalSource.KERNEL and busy and not context.stepped:
        return Refined("gpu_reset_required_xid_95", 0.9, "the GPU already refused work when this job began", names_node=True)
    return None


def _cuda_oom(context: Context) -> Refined | None:
    texts = [item.text for item in (context.primary, *context.same)]
    sizes = next((found for text in texts if (found := _sizes(text))), None)
    ranks = {item.rank for item in (context.primary, *context.same) if item.rank is not None}
    gpus = {item.gpu for item in (context.primary, *context.same) if item.gpu is not None}
    if (
        len(ranks) >= 3
        and gpus == {"0"}
        and len(context.nodes) <= 1
        and not context.stepped
        and any(text.count("Process ") >= 2 for text in texts)
    ):
        return Refined("gpu_mapping_config", 0.8, f"{len(ranks)} ranks all use GPU 0")
    if gpus == {"0"} and not context.stepped and len(context.nodes) <= 1 and (filled := _filled_together(context, ranks)):
        return Refined("gpu_mapping_config", 0.8, filled)
    if sizes is not None:
        capacity, free, own = sizes
        others = capacity - free - own if own is not None else 0.0  # what was not said is nobody's
        # One rank of a job of several; where ranks are not told apart, one node of several.
        alone = len(ranks) == 1 or (not ranks and len(context.nodes) == 1 and context.facts.only_node is None)
        wanted = next((_gib(size[1], size[2]) for text in texts if (size := _WANTED.search(text))), None)
        if wanted is not None and free > max(0.5 * capacity, 4 * wanted) and alone and not context.stepped:
            return Refined("faulty_gpu_oom_at_init", 0.72, f"{wanted:.3g} GiB were refused by a GPU with {free:.1f} GiB free")
        if capacity > 0 and own is not None and own < 0.3 * capacity and others > 0.5 * capacity:
            if not context.stepped:
                because = f"{others:.1f} of {capacity:.1f} GiB were in use by others before the job did anything"
                return Refined("gpu_not_clean_at_start", 0.82, because)
            if len(ranks) == 1 and not _shares_by_design(context):
                because = f"{others:.1f} of {capacity:.1f} GiB on this one GPU are held by a process that is not this rank's"
                return Refined("gpu_shared_by_foreign_process", 0.75, because)
    at_creation = any(
        re.search(r"CUDA error: out of memory|CUDA_ERROR_OUT_OF_MEMORY|Cuda failure.{0,6}out of memory", text) for text in texts
    )
    tried = any("Tried to allocate" in text for text in texts)
    if at_creation and not tried and not context.stepped:
        if at_node := context.followed:
            because = "creating a context on an empty GPU failed, and the node has failed others"
            return Refined("faulty_gpu_oom_at_init", 0.82, because, evidence=at_node)
        one_of_many = len(ranks) == 1 and (max(ranks) > 0 or (context.reading.world_size or 0) > 1)
        if (one_of_many or (not ranks and _once_on_one_node(context))) and _at_set_device(context):
            return Refined("faulty_gpu_oom_at_init", 0.72, "creating a context failed on one GPU of many before anything was allocated")
    if earlier := re.search(r"(?i)gpu\w*[=:. ]\D{0,30}\b([AHVBL]\d{2,3}\w*)\D{0,20}(\d+) ?GB", context.facts.earlier_text):
        return Refined("wrong_gpu_type", 0.6, f"an earlier attempt had {earlier[1]} GPUs")
    if any(item.signature == "mig_slice" for item in context.observations):
        return Refined("wrong_gpu_type", 0.7, "the job runs on a slice of a GPU (MIG)")
    now, before = _gpu_types(context.facts.text), _gpu_types(context.facts.earlier_text)
    if now and before and not now & before:
        return Refined("wrong_gpu_type", 0.75, f"an earlier attempt had {', '.join(sorted(before))}, this one {', '.join(sorted(now))}")
    return None


def _filled_together(context: Context, ranks: set[int]) -> str:
    """Why several ranks are on one GPU: what each holds is little, and together it is what the GPU has."""
    held: dict[int, float] = {}
    capacity = 0.0
    for item in (context.primary, *context.same):
        if item.rank is not None and (sizes := _sizes(item.text)) and sizes[2] is not None:
            held[item.rank], capacity = sizes[2], sizes[0]
    together = sum(held.values())
    if len(held) < _FEW_RANKS or held.keys() != ranks or max(held.values()) > 0.5 * capacity or together < 0.8 * capacity:
        return ""
    return f"{len(held)} ranks all use GPU 0 and hold {together:.0f} of its {capacity:.0f} GiB together"


def _once_on_one_node(context: Context) -> bool:
    """Told a single time, by one of several nodes that speak, where lines bear a node and no rank (pdsh, srun --label by host)."""
    return not context.same and len(context.nodes) == 1 and context.facts.only_node is None and len(context.reading.speaking_nodes) > 1


def _gpu_types(said: str) -> frozenset[str]:
    """Types of GPUs as Slurm writes them in a job's gres or TRES: gpu:TYPE:COUNT, gres/gpu:TYPE=COUNT."""
    return frozenset(kind.lower() for kind in re.findall(r"(?i)\bgpu:([a-z][\w.-]*)[:=]\d", said))


def _foreign(context: Context) -> Refined | None:
    if context.facts.ended_badly and not context.stepped:
        return Refined("gpu_not_clean_at_start", 0.82, "another process was on the GPU before the job did a step", names_node=True)
    return None


def _shares_by_design(context: Context) -> bool:
    """A trainer that keeps an inference engine on its own GPUs (vLLM, SGLang) shares them with itself."""
    return bool(re.search(r"(?i)\bvllm|sglang|rollout|colocat", context.primary.context + context.reading.last_text))


def _at_set_device(context: Context) -> bool:
    return bool(
        re.search(
            r"set_device|_cuda_setDevice|cudaSetDevice|cuda\.init|_lazy_init|cuCtxCreate|cudaMalloc.*init", context.primary.context[-4000:]
        )
    )


_FEW_RANKS = 3
_UNITS = {"GiB": 1.0, "MiB": 1024.0, "KiB": 1024.0**2, "bytes": 1024.0**3}  # torch's format_size (CUDACachingAllocator.cpp)
_SIZE = r"([\d.]+) ([GMK]iB|bytes)"
_WANTED = re.compile(rf"Tried to allocate {_SIZE}(?!.{{0,400}}\ballowed\b)")  # set_per_process_memory_fraction refuses as well


def _sizes(text: str) -> tuple[float, float, float | None] | None:
    """(capacity, free, held by this process where it is said) in GiB, from either wording of torch's allocator."""
    old = re.search(
        rf"{_SIZE} total capacity; {_SIZE} already allocated; {_SIZE} free(?:; {_SIZE} reserved)?",
        text,
    )
    if old:
        held = _gib(old[7], old[8]) if old[7] else _gib(old[3], old[4])
        return _gib(old[1], old[2]), _gib(old[5], old[6]), held
    new = re.search(rf"total capacity of {_SIZE} of which {_SIZE} is free", text)
    own = re.search(rf"(?:this process has|[Oo]f the allocated memory) {_SIZE}", text)
    if new:
        return _gib(new[1], new[2]), _gib(new[3], new[4]), _gib(own[1], own[2]) if own else None
    return None


def _gib(value: str, unit: str) -> float:
    return float(value) / _UNITS[unit]


# --------------------------------------------------------------------------------------------------------- memory and files


def _host_oom(context: Context) -> Refined | None:
    if context.phase is Doing.CHECKPOINT:
        return Refined("host_oom_checkpoint_save", 0.82, "memory ran out while a checkpoint was being saved")
    if trends.host_memory_grew(context.reading.marks):
        return Refined("host_oom_memory_leak", 0.8, "host memory had grown from step to step")
    return None


def _actor_died(context: Context) -> Refined | None:
    if trends.host_memory_grew(context.reading.marks):
        return Refined("host_oom_memory_leak", 0.7, "host memory had grown from step to step until the worker was killed")
    return None


def _io_error(context: Context) -> Refined | None:
    if (
        not context.stepped
        and re.search(r"(?i)load|restore|read_file|resum", context.primary.context[-3000:])
        and re.search(r"(?i)errno (?:5|121)\b", context.primary.text)
    ):
        return Refined("checkpoint_read_transient", 0.62, "reading failed below the file, while loading")
    return None


_SHARED_MEMORY = re.compile(
    r"\bSemLock\b|multiprocessing/(?:synchronize|shared_memory|heap|resource_tracker)\.py|\bshm_open\b|_share_filename_"
)


def _no_space(context: Context) -> Refined | None:
    if _SHARED_MEMORY.search(context.primary.own_context[-3000:]):
        # A semaphore and a block of shared memory are files in /dev/shm (sem_overview(7)); no disk is full.
        return Refined("shm_too_small_container", 0.9, "semaphores and shared memory are files in /dev/shm, which is full")
    if not re.search(r"\b(?:pyxis|enroot)\b", context.primary.text):
        return None
    count = context.facts.node_count or len(context.facts.nodes)
    if count > 1 and len(context.nodes) == 1:
        return Refined("container_runtime_misconfigured", 0.82, f"one of {count} nodes has no room for the container", names_node=True)
    return Refined("container_start_failed", 0.8, "there is no room for the container")


def _checkpoint(context: Context) -> Refined | None:
    ranks = context.reading.ranks.get(context.primary.signature, set())
    size = context.reading.world_size or 0
    again = re.search(
        r"(?i)(?:same checkpoint|checkpoint\S*).{0,80}(?:load(?:s|ed)|read|verif\w+|ok|intact|good|success)",
        context.facts.text + "\n" + context.facts.earlier_text,
    )
    loaded = any(
        told.turn is Turn.TRAINING_BEGINS and re.search(r"(?i)successfully loaded|loaded checkpoint", told.text)
        for told in context.reading.phases
    )
    if "file read failed" in context.primary.text and not re.search(r"central directory|corrupt", context.primary.text):
        # The archive is whole, reading below it failed (torch inline_container.cc).
        return Refined("checkpoint_read_transient", 0.7, "the file could not be read, it is not said to be broken")
    if again:
        return Refined("checkpoint_read_transient", 0.78, "the same checkpoint was read without trouble at another time")
    if loaded and size >= 4 and 0 < len(ranks) <= max(1, size // 8):
        return Refined("checkpoint_read_transient", 0.66, f"only {len(ranks)} of {size} ranks could not read what the others read")
    return None


# ---------------------------------------------------------------------------------------------------------------- scheduler


def _kill_task(context: Context) -> Refined | None:
    if context.facts.state == "TIMEOUT" or context.seen("time_limit"):
        return Refined("time_limit_unkillable_node_drained", 0.88, "the time limit was reached and Slurm could not end every process")
    return None


def _time_limit(context: Context) -> Refined | None:
    unkillable = [item for item in context.observations if item.signature == "kill_task_failed"]
    if unkillable:
        # Where the step was cancelled says nothing; where a process would not die does.
        where = next((item for item in unkillable if item.named_node), unkillable[0])
        because = "the time limit was reached and Slurm could not end every process"
        return Refined("time_limit_unkillable_node_drained", 0.88, because, evidence=where)
    return None


def _preempted(context: Context) -> Refined | None:
    if context.facts.state in ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED") or re.search(
        r"(?i)requeued?\b(?!=(?:0|no|false))", context.facts.text
    ):
        return Refined("preempted_requeued", 0.9, "Slurm has requeued it already")
    return None


def _numbers(context: Context) -> Refined | None:
    said = context.facts.text + "\n" + context.facts.earlier_text
    if (
        context.seen("library_changed")
        or re.search(r"(?i)upgrad|downgrad|version.{0,20}(?:->|→|changed)", said)
        or _software_differs(context.facts)
    ):
        return Refined("nan_after_library_upgrade", 0.72, "it came with a change of a library")
    resumed = any(told.turn is Turn.TRAINING_BEGINS and "oad" in told.text for told in context.reading.phases)
    if trends.numbers_of(context.reading.marks).from_the_start and not resumed:
        return Refined("loss_nan_data_mismatch", 0.6, "the loss was not a number from the first steps on")
    return None


_SOFTWARE = re.compile(r"(?i)^(?:.*\.)?([\w-]*(?:image|container|version|torch|nccl|cuda|transformer_engine|driver)[\w-]*)=(.+)$", re.M)


def _software_differs(facts: SchedulerFacts) -> bool:
    """True when an earlier attempt is told to have run other software than this one."""
    now = dict(_SOFTWARE.findall(facts.text))
    return any(now.get(key, value) != value for key, value in _SOFTWARE.findall(facts.earlier_text))


def _ordinal(context: Context) -> Refined | None:
    said = next((item for item in context.observations if item.cause == "nvlink_fabric_misconfigured"), None)
    if said is not None and "Cuda failure" in context.primary.text:
        # Importing a peer's fabric handle fails with error 101 where no IMEX domain spans both nodes (NVIDIA/nccl#1647).
        return Refined(
            "nvlink_fabric_misconfigured", said.weight, "NCCL asked for memory of a GPU behind the fabric, no program for a device"
        )
    return None


def _fabric(context: Context) -> Refined | None:
    handles = any(re.search(r"(?i)import|IMEX|MNNVL", item.text) for item in (context.primary, *context.same))
    if handles and context.facts.only_node is None:
        return None  # an IMEX domain spans nodes: who cannot take another's handle may be the healthy end (NVIDIA/nccl#1647)
    if len(context.nodes) > 1:
        return None  # what several nodes say alike is what they share
    return Refined("nvlink_fabric_misconfigured", context.primary.weight, "its own part of the fabric is at fault", names_node=True)


def _no_gpus(context: Context) -> Refined | None:
    lost = [item for item in context.observations if item.signature == "slurm_gpus_missing"]
    if lost and {context.whereabouts.locate(item)[0] for item in lost} == context.nodes:
        return Refined("gpu_fell_off_bus", 0.9, "Slurm counts fewer GPUs there than the node has", names_node=True)
    count = context.facts.node_count or len(context.facts.nodes)
    if count > 1 and len(context.nodes) == 1:
        return Refined("driver_libs_missing_on_node", 0.66, f"one of {count} nodes shows no GPU")
    return None


_RULES: Mapping[str, tuple[Rule, ...]] = {
    "segfault_rank": (_segfault, _actor_died),
    "sigill_config_regression": (_sigill,),
    "illegal_memory_access_app_bug": (_illegal_access,),
    "cuda_oom": (_cuda_oom,),
    "gpu_shared_by_foreign_process": (_foreign,),
    "ecc_uncorrectable": (_earlier_memory_error,),
    "xid_74_nvlink_fatal": (_nvlink,),
    "nodes_started_too_far_apart": (network.joined, network.store_lost),
    "host_oom_cgroup": (_host_oom,),
    "host_oom_memory_leak": (_host_oom,),
    "parallel_fs_unavailable": (_io_error,),
    "disk_full_checkpoint_save": (_no_space,),
    "checkpoint_corrupt": (_checkpoint,),
    "ib_port_error": (network.port,),
    "ib_port_down_degraded": (network.port_ends,),
    "ib_transport_timeout": (network.transport,),
    "nccl_remote_error_ib": (network.remote_error,),
    "dns_resolution_failure": (network.resolution,),
    "launch_world_size_mismatch": (network.barrier,),
    "address_in_use": (network.address,),
    "node_drain_kill_task_failed": (_kill_task,),
    "time_limit": (_time_limit,),
    "preempted": (_preempted,),
    "loss_divergence_nan": (_numbers,),
    "gpu_mapping_config": (_ordinal, _no_gpus),
    "rdzv_port_conflict": (network.closed,),
    "import_error_abi_mismatch": (imports.failed,),
    "nccl_version_unsupported": (imports.no_code_for_device,),
    "nvlink_fabric_misconfigured": (_fabric,),
}
