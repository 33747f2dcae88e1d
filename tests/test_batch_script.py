"""What a batch script says, as text: values that need no shell, and whether ranks are laid out as the allocation tells."""

import pytest

from activities.batch_script import Layout, expanded, layout_of, values_of
from tests.builders import a_job, node_names

UNKNOWN = Layout(distribution="unknown")


@pytest.mark.parametrize(
    ("line", "values"),
    [
        ("export DUMP=/shared/run1/nccl_", ("/shared/run1/nccl_",)),
        ("DUMP=/shared/a srun python train.py", ("/shared/a",)),
        ("srun env DUMP=/shared/a python", ()),  # in the middle of a command: an argument like any other
        ("  export A=1 DUMP='/shared/with space/x'", ("/shared/with space/x",)),
        ('export DUMP="/shared/$SLURM_JOB_ID/x"; srun python', ("/shared/$SLURM_JOB_ID/x",)),
        ("env DUMP=/shared/a python train.py", ("/shared/a",)),
        ("A=1 DUMP=/a srun x\nexport DUMP=/b # DUMP=/c", ("/a", "/b")),
        ("# export DUMP=/a", ()),
        ("echo DUMP=/a", ()),
        ("export DUMP='/a", ()),
        ("export OTHER_DUMP=/a", ()),
    ],
)
def test_a_variables_values_are_read_where_the_script_sets_it(line: str, values: tuple[str, ...]) -> None:
    assert values_of(f"#!/bin/bash\n{line}\n", "DUMP") == values


@pytest.mark.parametrize(
    ("word", "path"),
    [
        ("/shared/$SLURM_JOB_ID/${SLURM_JOB_NAME}_", "/shared/17/train_"),
        ("/shared/$USER", "/shared/alice"),
        ("/shared/$SLURM_ARRAY_TASK_ID", None),  # no array task
        ("/shared/$(hostname)", None),
        ("/shared/`id`", None),
        ("/shared/$HOME", None),
        ("/shared/${X:-1}", None),
        ("/shared/*", None),
        ("~/x", None),
    ],
)
def test_only_slurms_plain_variables_are_filled_in(word: str, path: str | None) -> None:
    assert expanded(word, a_job()) == path


@pytest.mark.parametrize(
    ("script", "layout"),
    [
        ("srun python", Layout(tasks_of_nodes=(2, 2))),
        ("srun -m cyclic python", Layout(distribution="cyclic", tasks_of_nodes=(2, 2))),
        ("srun --distribution=cyclic:block python", Layout(distribution="cyclic", tasks_of_nodes=(2, 2))),
        ("#SBATCH --distribution=cyclic\nsrun python", Layout(distribution="cyclic", tasks_of_nodes=(2, 2))),
        ("export SLURM_DISTRIBUTION=cyclic\nsrun python", Layout(distribution="cyclic", tasks_of_nodes=(2, 2))),
        ("srun -m plane=2 python", UNKNOWN),
        ("srun -m block a & srun -m cyclic b", UNKNOWN),
        ("srun -w node-002 python", UNKNOWN),
        ("srun -n 2 python", UNKNOWN),
        ("srun -n 4 -N2 python", Layout(tasks_of_nodes=(2, 2))),
        ('srun -n "$SLURM_NTASKS" python', Layout(tasks_of_nodes=(2, 2))),
        ("srun --ntasks-per-node=2 python", Layout(tasks_of_nodes=(2, 2))),
        ("srun --ntasks-per-node=1 torchrun --nproc-per-node=2 train.py", Layout()),
        ("srun --ntasks-per-node=3 python", UNKNOWN),
        ("export SLURM_HOSTFILE=hosts\nsrun python", UNKNOWN),
    ],
)
def test_ranks_are_laid_out_as_the_allocation_tells_unless_the_script_says_otherwise(script: str, layout: Layout) -> None:
    assert layout_of(a_job(task_count=4, tasks_per_node=2), f"#!/bin/bash\n{script}\n") == layout


def test_without_a_count_of_tasks_a_node_only_one_task_on_each_is_certain() -> None:
    assert layout_of(a_job(task_count=4), "srun python") == UNKNOWN, "Slurm may have put three on one and one on the other"
    assert layout_of(a_job(task_count=2), "srun python").tasks_of_nodes == (1, 1)
    assert layout_of(a_job(task_count=4, nodes=node_names(1)), "srun python") == Layout(), "one node: there is no question"
    assert layout_of(a_job(task_count=4, tasks_per_node=2), None).tasks_of_nodes == (2, 2)
