"""``python -m mha_native``: the command line."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from .commands import classify, completion, demo, embed, embed_corpus, generate, rerank, selftest
from .commands.classify import STRATEGIES
from .commands.ending import run_to_end
from .commands.output import refuse_to_replace
from .functions.dtypes import LAYER_DTYPES, WEIGHT_FORMATS
from .functions.runtime import configuration, show_config

_EXAMPLE = "A dog ate the food because it was hungry"

# Folders of the C++ library in the package, for builds of C++ programs: cmake -Dmha_native_DIR=$(... --cmake-dir)
_PLACES = {
    "--cmake-dir": ("lib/cmake/mha_native", "folder of the CMake package, for mha_native_DIR"),
    "--include-dir": ("include", "folder of the C and C++ headers"),
    "--pkgconfig-dir": ("lib/pkgconfig", "folder of mha_native.pc, for PKG_CONFIG_PATH"),
}


class _PrintPlace(argparse.Action):
    """Prints a path below the package. The action "version" would wrap a long one."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        place = Path(__file__).parent / str(self.const)
        if not place.is_dir():
            parser.error(
                f"{self.option_strings[0]}: this wheel came without the C++ library; "
                "pip install --force-reinstall --no-binary mha_native mha_native compiles it"
            )
        print(place)
        parser.exit()


class _PrintCompletion(argparse.Action):
    """Prints a script for shells, of the commands that the parser has by then."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        sys.stdout.write(completion.script(parser))
        parser.exit()


def main(arguments: list[str] | None = None) -> int:
    """Runs one command and returns the exit code: 2 for a mistake of the user."""
    given = sys.argv[1:] if arguments is None else arguments
    return run_to_end(lambda: _run(given))


def _run(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m mha_native", description="Multi-head attention on a CPU.")
    version = f"mha_native {configuration()['mha_native']}"
    parser.add_argument("--version", action="version", version=version, help="print the version, and exit")
    about = 'print what lets bash complete the program mha_native, and exit: eval "$(mha_native --completion)"'
    parser.add_argument("--completion", action=_PrintCompletion, nargs=0, help=about)
    for option, (place, about) in _PLACES.items():
        parser.add_argument(option, action=_PrintPlace, const=place, nargs=0, help=f"print the {about}, and exit")
    commands = parser.add_subparsers(dest="command", required=True, metavar="command")
    about = "versions, instruction sets, threads, and why they are what they are"
    info_parser = commands.add_parser("info", help=about, description=about[0].upper() + about[1:] + ".")
    info_parser.add_argument("--json", action="store_true", help="as one JSON object, for programs")
    about = "whether the installed library computes on this machine what it must; exit code 1 if not"
    selftest_parser = commands.add_parser("selftest", help=about, description=about[0].upper() + about[1:] + ".")
    selftest_parser.add_argument("--isa", metavar="NAME", help="this instruction set only, in this process")
    about = "self-attention over the words of a text: what each word attends to in each head, the error, the time"
    demo_parser = commands.add_parser("demo", help=about, description=about[0].upper() + about[1:] + ".")
    source = demo_parser.add_mutually_exclusive_group()
    source.add_argument("--text", default=_EXAMPLE, help='default: "%(default)s"')
    source.add_argument("--file", metavar="PATH", help="take the text from a UTF-8 file")
    demo_parser.add_argument("--plot", metavar="PATH", help="draw the weights of each head, to heads.png for example")
    demo_parser.add_argument("--seed", type=int, default=0, help="of embeddings and weights; default: %(default)s")
    _add_embed(commands)
    _add_rerank(commands)
    _add_classify(commands)
    _add_generate(commands)
    about = "speed beside other libraries, on the same inputs in turns; each result is checked first (bench --help)"
    commands.add_parser("bench", help=about, add_help=False)
    is_bench = given[:1] == ["bench"]  # its options are parsed by the benchmark itself
    options = parser.parse_args(given[:1] if is_bench else given)

    if options.command == "bench":
        return _bench(given[1:])
    if options.command == "info":
        if options.json:
            print(json.dumps(configuration(), indent=2))
        else:
            show_config()
    elif options.command == "selftest":
        return selftest.run(options.isa)
    elif options.command == "embed":
        _embed(options)
    elif options.command == "rerank":
        _rerank(options)
    elif options.command == "classify":
        _classify(options)
    elif options.command == "generate":
        _generate(options)
    else:
        if options.file is not None and options.plot is not None:
            refuse_to_replace(options.file, options.plot, "--plot")
        text = options.text if options.file is None else demo.read_text(options.file)
        demo.run(text, options.seed, options.plot)
    return 0


def _add_command(commands: Any, name: str, about: str, further: str = "") -> Any:
    """The parser of a command that has a model of texts, in a directory or in `further` places."""
    parser = commands.add_parser(name, help=about, description=about[0].upper() + about[1:] + ".")
    parser.add_argument(
        "--model",
        metavar="DIR",
        required=True,
        help=f"with config.json, model.safetensors, tokenizer.json; {further}or the name of a model of Hugging Face",
    )
    parser.add_argument(
        "--dtype",
        choices=LAYER_DTYPES,
        default="float32",
        help="what the model is computed in; default: %(default)s",
    )
    parser.add_argument(
        "--weight-dtype",
        choices=("float32", *WEIGHT_FORMATS),
        help="with float32, what the weights of the layers are stored as; default: as --dtype",
    )
    parser.set_defaults(usage_error=parser.error)
    return parser


def _add_rerank(commands: Any) -> None:
    parser = _add_command(commands, "rerank", "documents in the order in which they fit a query, by a cross-encoder")
    parser.add_argument("--query", metavar="TEXT", help="default: each line of FILE has its own")
    source = parser.add_argument_group("what to rank, one of").add_mutually_exclusive_group(required=True)
    source.add_argument("documents", metavar="TEXT", nargs="*", default=[], help="a document, or several")
    about = "a document in each line, in UTF-8; without --query a JSON object: query, and documents, a list"
    source.add_argument("--file", metavar="FILE", help=f"{about}; - reads standard input")
    _add_results(parser, "documents")


def _add_classify(commands: Any) -> None:
    parser = _add_command(commands, "classify", "labels of texts, or the entities in them, by a pretrained classifier")
    source = parser.add_argument_group("what to classify, one of").add_mutually_exclusive_group(required=True)
    source.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="a text, or several")
    about = "a text in each line, in UTF-8; in a file .jsonl a JSON object: text, and perhaps text_pair"
    source.add_argument("--file", metavar="FILE", help=f"{about}; - reads lines of standard input")
    about = "of a model that finds entities, how tokens are joined: simple (default), first, average, max, none"
    parser.add_argument("--aggregation", metavar="HOW", choices=STRATEGIES, help=about)
    _add_results(parser, "labels of each text")


def _add_generate(commands: Any) -> None:
    parser = _add_command(
        commands, "generate", "text of a language model that continues prompts, or answers them", "a .gguf file; "
    )
    source = parser.add_argument_group("what to continue, one of").add_mutually_exclusive_group(required=True)
    source.add_argument("--prompt", metavar="TEXT", help="a prompt; the text is printed as it comes")
    about = "a prompt in each line, in UTF-8; in a file .jsonl a JSON object: prompt, or messages"
    source.add_argument("--file", metavar="FILE", help=f"{about}; - reads lines of standard input")
    parser.add_argument("--chat", action="store_true", help="answer prompts, by the chat template of the model")
    parser.add_argument("--max-new-tokens", metavar="N", type=_count, help="default: 256")
    parser.add_argument("--temperature", metavar="T", type=float, help="0, the default, takes the most probable token")
    parser.add_argument("--top-k", metavar="K", type=_count, help="draw among the K most probable tokens")
    parser.add_argument("--top-p", metavar="P", type=float, help="draw among the fewest tokens that reach P together")
    about = "draw among tokens with at least P times the probability of the most probable one"
    parser.add_argument("--min-p", metavar="P", type=float, help=about)
    about = "what the logits of tokens that are there already are divided by"
    parser.add_argument("--repetition-penalty", metavar="X", type=float, help=about)
    parser.add_argument("--stop", metavar="TEXT", action="append", help="end before this text; may be given repeatedly")
    parser.add_argument("--seed", metavar="N", type=int, help="of draws; default: another one each time")
    about = "most tokens of a prompt and its continuation; default: as many as the model was trained with"
    parser.add_argument("--max-length", metavar="N", type=_count, help=about)
    about = "with --file: out.jsonl; default: JSON lines to standard output"
    parser.add_argument("--output", metavar="PATH", help=about)


_GENERATION = ("max_new_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "stop", "seed")


def _generate(options: argparse.Namespace) -> None:
    formats = {name: getattr(options, name) for name in ("dtype", "weight_dtype", "max_length")}
    given = {name: getattr(options, name) for name in _GENERATION}
    if options.file is not None:
        generate.run_file(options.model, formats, options.file, options.chat, given, options.output)
    elif options.output is not None:
        options.usage_error("--output needs --file")
    else:
        generate.run(options.model, formats, options.prompt, options.chat, given)


def _add_results(parser: Any, of_what: str) -> None:
    parser.add_argument("--top-k", metavar="K", type=_count, help=f"only the best K {of_what}")
    parser.add_argument("--output", metavar="PATH", help="out.jsonl; default: JSON lines to standard output")


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise ValueError
    return number


def _rerank(options: argparse.Namespace) -> None:
    if options.query is None and options.file is None:
        options.usage_error("documents need --query")
    rerank.run(
        options.model,
        options.dtype,
        options.weight_dtype,
        options.query,
        options.documents,
        options.file,
        options.top_k,
        options.output,
    )


def _classify(options: argparse.Namespace) -> None:
    classify.run(
        options.model,
        options.dtype,
        options.weight_dtype,
        options.texts,
        options.file,
        options.top_k,
        options.aggregation,
        options.output,
    )


def _add_embed(commands: Any) -> None:
    parser = _add_command(
        commands, "embed", "sentence embeddings of texts, or of the lines of a file, by a pretrained model"
    )
    prompts = parser.add_mutually_exclusive_group()
    prompts.add_argument("--prompt-name", metavar="NAME", help="the prompt of the model before each text: query")
    prompts.add_argument("--prompt", metavar="TEXT", help="what stands before each text; default: as the model says")
    source = parser.add_argument_group("what to embed, one of").add_mutually_exclusive_group(required=True)
    source.add_argument("texts", metavar="TEXT", nargs="*", default=[], help="a text, or several")
    source.add_argument("--file", metavar="FILE", help="a text in each line, in UTF-8; - reads standard input")
    source.add_argument("--explain", metavar="TEXT", help="show what each token attends to, in each layer and head")
    about = "with --ray: a folder of files .txt, .jsonl and .parquet, to as many and more in the folder --output"
    source.add_argument("--input", metavar="DIR", help=about)
    parser.add_argument("--output", metavar="PATH", help="out.npy or out.jsonl; default: JSON lines to standard output")
    parser.add_argument("--plot", metavar="PATH", help="with --explain: draw the weights, to heads.png for example")
    corpus = parser.add_argument_group("of a folder of files")
    about = "by a pool of actors of Ray; a run that was killed goes on where it was"
    corpus.add_argument("--ray", action="store_true", help=about)
    about = "the texts in JSON objects and Parquet files; default: %(default)s"
    corpus.add_argument("--column", metavar="NAME", default="text", help=about)
    corpus.add_argument("--concurrency", metavar="N", type=_count, help="most actors; default: as there are processors")
    about = "processors and threads of each actor; default: %(default)s"
    corpus.add_argument("--num-cpus", metavar="N", type=_count, default=1, help=about)


def _embed(options: argparse.Namespace) -> None:
    if options.ray or options.input is not None:
        _embed_corpus(options)
    elif options.explain is None:
        if options.plot is not None:
            options.usage_error("--plot needs --explain")
        prompt = {"prompt_name": options.prompt_name, "prompt": options.prompt}
        embed.run(
            options.model, options.dtype, options.weight_dtype, prompt, options.texts, options.file, options.output
        )
    elif options.output is not None:
        options.usage_error("--output does not go with --explain")
    elif options.prompt is not None or options.prompt_name is not None:
        options.usage_error("a prompt does not go with --explain")
    else:
        embed.explain(options.model, options.dtype, options.weight_dtype, options.explain, options.plot)


def _embed_corpus(options: argparse.Namespace) -> None:
    if not options.ray or options.input is None or options.output is None:
        options.usage_error("--ray, --input and --output go together")
    if options.plot is not None:
        options.usage_error("--plot needs --explain")
    embed_corpus.run(
        options.model,
        {"dtype": options.dtype, "weight_dtype": options.weight_dtype},
        {"prompt_name": options.prompt_name, "prompt": options.prompt},
        options.input,
        options.output,
        options.column,
        options.concurrency,
        options.num_cpus,
    )


def _bench(arguments: list[str]) -> int:
    from mha_native_bench.command_line import main as bench  # which imports this package, so that it comes late

    return bench(arguments)


if __name__ == "__main__":
    sys.exit(main())
