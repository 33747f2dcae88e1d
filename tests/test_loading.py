"""Reading the configuration: every key documented, every error with its line, its key and its mend."""

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from activities.configuration import ClusterSection, Configuration, Rule, When
from activities.loading import ConfigurationError, load_configuration
from activities.records import Domain, Mode

DOCUMENTED = Path(__file__).parents[1] / "deploy" / "backstay.yaml"
MINIMAL = "cluster: {name: alpha}\n"


def written(directory: Path, text: str) -> Path:
    path = directory / "backstay.yaml"
    path.write_text(text)
    return path


def problems_of(path: Path | None, environ: Mapping[str, str] | None = None) -> tuple[str, ...]:
    with pytest.raises(ConfigurationError) as raised:
        load_configuration(path, environ or {})
    return raised.value.problems


def problem_in(directory: Path, text: str, environ: Mapping[str, str] | None = None) -> str:
    """The only problem with a file of this text, with its place shortened to the file's name."""
    path = written(directory, text)
    [problem] = problems_of(path, environ)
    return problem.replace(str(path), "backstay.yaml")


def uncommented(text: str) -> str:
    """The documented file with every optional key switched on; the example of a rule (from `# A rule` to `rules:`) stays one."""
    before, _, rest = text.partition("  # A rule")
    example, _, after = rest.partition("  rules: ")
    switch_on = re.compile(r"^(  +)# (?=[ a-z_]+:)", re.MULTILINE)
    return switch_on.sub(r"\1", before) + "  # A rule" + example + "  rules: " + switch_on.sub(r"\1", after)


def test_the_documented_file_is_the_defaults() -> None:
    loaded = load_configuration(DOCUMENTED, {})
    defaults = Configuration(cluster=ClusterSection(name="alpha"))
    home = {"evidence": {"directory"}, "temporal": {"database"}}
    assert loaded.model_dump(exclude=home) == defaults.model_dump(exclude=home)
    assert loaded.evidence.directory == defaults.evidence.directory.expanduser()
    assert loaded.temporal.database == defaults.temporal.database.expanduser()


def test_the_documented_command_makes_the_documented_version_current() -> None:
    text = DOCUMENTED.read_text()
    worker = re.search(r"# deployment: (\S+).*\n +# build_id: (\S+)", text)
    command = re.search(r"set-current-version --deployment-name (\S+) --build-id (\S+)", text)
    assert worker is not None
    assert command is not None
    assert command.groups() == worker.groups()


def test_the_documented_file_names_every_key_and_its_examples_are_valid(tmp_path: Path) -> None:
    text = DOCUMENTED.read_text()
    loaded = load_configuration(written(tmp_path, uncommented(text)), {})
    assert [place for place, value in _leaves(loaded.model_dump()) if value is None] == []
    assert [name for name in (*When.model_fields, *Rule.model_fields) if not re.search(rf"\b{name}\b", text)] == []


def _leaves(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{above}{key}.")
        else:
            yield f"{above}{key}", value


def test_every_key_with_a_default_stands_in_the_documented_file() -> None:
    written_keys = {place for place, _ in _leaves(YAML(typ="safe", pure=True).load(DOCUMENTED.read_text()))}
    defaults = Configuration(cluster=ClusterSection(name="alpha")).model_dump()
    assert {place for place, value in _leaves(defaults) if value is not None} - written_keys == set()


def test_an_unknown_key_names_line_and_nearest_key(tmp_path: Path) -> None:
    said = problem_in(tmp_path, MINIMAL + "policy:\n  modee: auto\n")
    assert said == "backstay.yaml:3: policy.modee: unknown key; did you mean mode?"


def test_a_key_in_the_wrong_place_is_told_its_right_one(tmp_path: Path) -> None:
    said = problem_in(tmp_path, MINIMAL + "policy: {excluded_fraction: 0.1}\n")
    assert said == "backstay.yaml:2: policy.excluded_fraction: unknown key; it belongs to policy.limits"


def test_a_key_like_no_other_is_told_the_known_ones(tmp_path: Path) -> None:
    assert problem_in(tmp_path, MINIMAL + "logs: {zzz: 1}\n").endswith("logs.zzz: unknown key; known here: roots")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("policy: {mode: autoo}", "policy.mode: 'autoo' is not known; did you mean auto?"),
        ("policy: {mode: 7}", "policy.mode: 7 is not known; use one of observe, approve or auto"),
        ("watch: {poll_interval: 5x}", "watch.poll_interval: '5x' is no duration; write 90s, 15m, 24h or 7d"),
        ("watch: {poll_interval: 0s}", "watch.poll_interval: '0s' is out of range; it must be longer than 0 s"),
        ("watch: {poll_interval: 99999999d}", "watch.poll_interval: '99999999d' is out of range; it must be 3653d or less"),
        (f"watch: {{poll_interval: {'9' * 30}s}}", f"watch.poll_interval: '{'9' * 30}s' is no duration; write 90s, 15m, 24h or 7d"),
        (
            f"temporal: {{ui_port: {'x' * 500}}}",
            f"temporal.ui_port: must be a valid integer, unable to parse string as an integer (found '{'x' * 78}…)",
        ),
        ("watch: {hang_floor: 5}", "watch.hang_floor: 5 has no unit; write 5s if seconds are meant, else such as 90s, 15m, 24h or 7d"),
        ("watch: {hang_floor: '5'}", "watch.hang_floor: '5' has no unit; write 5s if seconds are meant, else such as 90s, 15m, 24h or 7d"),
        (
            "watch: {hang_floor: 0.5}",
            "watch.hang_floor: 0.5 has no unit; write 0.5s if seconds are meant, else such as 90s, 15m, 24h or 7d",
        ),
        ("watch: {hang_floor: 0}", "watch.hang_floor: 0 is out of range; it must be longer than 0 s"),
        ("watch: {hang_floor: true}", "watch.hang_floor: True is no duration; write 90s, 15m, 24h or 7d"),
        ("watch: {hang_steps: .inf}", "watch.hang_steps: inf is no number to count with; write a finite one"),
        (
            "temporal: {address: foo}",
            "temporal.address: 'foo' has no port; write foo:7233, or the port where the Temporal frontend listens",
        ),
        (
            "temporal: {address: '::1'}",
            "temporal.address: '::1' has no port; write [::1]:7233, or the port where the Temporal frontend listens",
        ),
        (
            "temporal: {address: 'http://foo:7233'}",
            "temporal.address: 'http://foo:7233' is no address; write host:port, such as 127.0.0.1:7233, without http://",
        ),
        (
            "temporal: {address: 'foo:99999'}",
            "temporal.address: 'foo:99999' is no address; write host:port with a port from 1 to 65535, such as 127.0.0.1:7233",
        ),
        (
            "temporal: {ui_url: 'foo:8080'}",
            "temporal.ui_url: 'foo:8080' is no URL; write http://host:port or https://host, such as http://foo:8080",
        ),
        (
            "attribution: {attrsvc: {url: 'http://'}}",
            "attribution.attrsvc.url: 'http://' is no URL; write http://host:port or https://host",
        ),
        (
            "attribution: {operator_service: {url: 'ftp://x'}}",
            "attribution.operator_service.url: 'ftp://x' is no URL; write http://host:port or https://host",
        ),
        ("policy: {limits: {restarts: -1}}", "policy.limits.restarts: -1 is out of range; it must be greater than or equal to 0"),
        ("policy: {rules: [{do: stopp}]}", "policy.rules[0].do: 'stopp' is not known; did you mean stop?"),
        ("policy: {rules: [{when: {}}]}", "policy.rules[0].do: is missing and has no default"),
        ("policy: {rules: [{do: stop, when: {domain: usr}}]}", "policy.rules[0].when.domain: 'usr' is not known; did you mean user?"),
        ("policy: {rules: [{do: stop, when: {domain: [usr]}}]}", "policy.rules[0].when.domain[0]: 'usr' is not known; did you mean user?"),
        (
            "policy: {rules: [{do: stop, when: {cause: cuda_om}}]}",
            "policy.rules[0].when.cause: 'cuda_om' is no cause; did you mean cuda_oom?",
        ),
        (
            "policy: {rules: [{do: stop, when: {cause: [zzz]}}]}",
            "policy.rules[0].when.cause: 'zzz' is no cause; `backstay policy check` lists them",
        ),
        ("watch: {partitions: train}", "watch.partitions: 'train' is no list; write [train]"),
        (
            "watch: {progress_pattern: 'step (\\d+)'}",
            "watch.progress_pattern: has no group named iteration; write the number as (?P<iteration>\\d+)",
        ),
        ("attribution: {attrsvc: {}}", "attribution.attrsvc.url: is missing and has no default"),
        ("attribution: {attrsvc: here}", "attribution.attrsvc: needs keys below it (url, deadline), not 'here'"),
        ("temporal: {tls: perhaps}", "temporal.tls: must be a valid boolean, unable to interpret input (found 'perhaps')"),
    ],
)
def test_a_wrong_value_names_line_key_and_mend(tmp_path: Path, text: str, said: str) -> None:
    assert problem_in(tmp_path, f"{MINIMAL}{text}\n") == f"backstay.yaml:2: {said}"


def test_a_broken_pattern_says_what_is_wrong(tmp_path: Path) -> None:
    assert "is not a regular expression" in problem_in(tmp_path, MINIMAL + "watch: {progress_pattern: '(?P<iteration>'}\n")


def test_several_mistakes_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    path = written(tmp_path, "cluster: {name: alpha}\nlogs: {root: []}\npolicy:\n  mode: x\n  drain: true\n")
    lines = [problem.split(":")[1] for problem in problems_of(path)]
    assert lines == ["2", "4", "5"]


def test_a_missing_cluster_is_told(tmp_path: Path) -> None:
    assert problem_in(tmp_path, "policy: {}\n") == "backstay.yaml: cluster: is missing and has no default"


def test_an_empty_file_is_told_what_it_needs(tmp_path: Path) -> None:
    assert "is empty; it needs at least `cluster: {name: ...}`" in problem_in(tmp_path, "# nothing yet\n")


def test_a_missing_file_a_directory_and_no_file_at_all_are_told(tmp_path: Path) -> None:
    assert "no such file; give the right one with -c FILE" in problems_of(tmp_path / "none.yaml")[0]
    assert "cannot be read" in problems_of(tmp_path)[0]
    assert problems_of(None) == ("no configuration file: give one with -c FILE or set BACKSTAY_CONFIG",)


def test_bad_yaml_names_its_line(tmp_path: Path) -> None:
    assert problem_in(tmp_path, "cluster:\n  name: alpha\n logs: {}\n").startswith("backstay.yaml:3: is not valid YAML")
    assert problem_in(tmp_path, "cluster: {name: alpha\n").startswith("backstay.yaml:2: is not valid YAML")
    assert "duplicate key" in problem_in(tmp_path, MINIMAL + MINIMAL)
    assert problem_in(tmp_path, "- a\n") == "backstay.yaml:1: must hold keys such as `cluster:`, not a list"
    assert "valid YAML" in problem_in(tmp_path, "cluster: !!python/object:os.system {}\n")


def test_bytes_that_are_no_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "backstay.yaml"
    path.write_bytes(b"cluster: \xff\xfe\n")
    assert "is not UTF-8 text" in problems_of(path)[0]


def test_the_environment_overrides_the_file(tmp_path: Path) -> None:
    environ = {
        "BACKSTAY__POLICY__MODE": "auto",
        "BACKSTAY__POLICY__LIMITS__RESTARTS": "2",
        "BACKSTAY__WATCH__PARTITIONS": "[train, big]",
        "BACKSTAY__WATCH__POLL_INTERVAL": "10s",
        "BACKSTAY__WATCH__LOG_INTERVAL": "2s",
        "BACKSTAY__TEMPORAL__TLS": "true",
        "BACKSTAY__CLUSTER__NAME": "007",
        "BACKSTAY__TEMPORAL__UI_URL": "",
    }
    path = written(tmp_path, MINIMAL + "policy: {mode: observe, limits: {spare_nodes: 1}}\n")
    loaded = load_configuration(path, environ)
    assert (loaded.policy.mode, loaded.policy.limits.restarts, loaded.policy.limits.spare_nodes) == (Mode.AUTO, 2, 1)
    assert loaded.watch.partitions == ("train", "big")
    assert (loaded.watch.poll_interval, loaded.watch.log_interval) == (timedelta(seconds=10), timedelta(seconds=2))
    assert (loaded.temporal.tls, loaded.cluster.name, loaded.temporal.ui_url) == (True, "007", None)


def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path) -> None:
    said = problem_in(tmp_path, MINIMAL, {"BACKSTAY__POLICY__MODEE": "auto"})
    assert said == "environment variable BACKSTAY__POLICY__MODEE: policy.modee: unknown key; did you mean BACKSTAY__POLICY__MODE?"
    said = problem_in(tmp_path, MINIMAL + "policy: {mode: auto}\n", {"BACKSTAY__POLICY__MODE": "autoo"})
    assert said.startswith("environment variable BACKSTAY__POLICY__MODE: policy.mode: 'autoo'")
    assert "names no key" in problem_in(tmp_path, MINIMAL, {"BACKSTAY__": "1"})
    assert "not a valid YAML list" in problem_in(tmp_path, MINIMAL, {"BACKSTAY__WATCH__USERS": "[a"})
    both = {"BACKSTAY__POLICY": "{}x", "BACKSTAY__POLICY__MODE": "auto"}
    assert "another variable sets all of policy" in problem_in(tmp_path, MINIMAL, {**both, "BACKSTAY__POLICY": "observe"})


def test_the_file_can_be_named_by_the_environment(tmp_path: Path) -> None:
    assert load_configuration(None, {"BACKSTAY_CONFIG": str(written(tmp_path, MINIMAL))}).cluster.name == "alpha"


def test_relative_paths_follow_the_file_and_home_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    text = MINIMAL + "logs: {roots: [runs, /shared]}\nattribution:\n  operator_service: {url: 'http://x', token_file: ~/token}\n"
    loaded = load_configuration(written(tmp_path, text), {})
    assert loaded.logs.roots == (tmp_path / "runs", Path("/shared"))
    assert loaded.attribution.operator_service is not None
    assert loaded.attribution.operator_service.token_file == Path("/home/someone/token")


def test_with_signatures_of_their_own_operators_may_name_causes_of_their_own(tmp_path: Path) -> None:
    text = MINIMAL + "attribution: {signatures: [mine.yaml]}\npolicy: {rules: [{do: hold, when: {cause: our_fabric, domain: network}}]}\n"
    [rule] = load_configuration(written(tmp_path, text), {}).policy.rules
    assert (rule.when.cause, rule.when.domain) == ("our_fabric", Domain.NETWORK)


def test_a_file_that_nests_without_end_is_refused_in_a_sentence(tmp_path: Path) -> None:
    problem = problem_in(tmp_path, "cluster: " + "[" * 5000 + "]" * 5000)
    assert problem == "backstay.yaml: nests deeper than 100 levels; flatten it"
