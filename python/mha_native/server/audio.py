"""Transcripts and translations of recordings, as the API of OpenAI has them."""

import asyncio
import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from time import monotonic
from typing import Annotated, Any, TypeAlias

import msgspec

from ..speech import Segment
from ..speech._options import TEMPERATURES
from ..speech._writers import WRITERS, Layout
from .calls import Answer, Call, ClientGone, answer, note_unknown
from .config import SPEECH
from .errors import Failure, failure_of
from .events import DONE, PING, PING_SECONDS, encoded_event, event_stream
from .forms import Form, read_form
from .service import Endpoint, Service
from .speech import RecordingError, SpeechEngine, Transcript, TranscriptRequest, text_of

_FILE = "file"  # the field of the recording

_JSON, _VERBOSE, _TEXT = "json", "verbose_json", "text"
_FORMATS = (_JSON, _TEXT, "srt", _VERBOSE, "vtt")
_WORD, _SEGMENT = "word", "segment"

# Fields that are not supported, with the values that ask for nothing. Names of lists may have [] at their end.
_UNSUPPORTED: dict[str, tuple[str, ...]] = {
    "chunking_strategy": ("",),
    "include": (),
    "known_speaker_names": (),
    "known_speaker_references": (),
    "to_language": ("en", ""),
}

_LISTS = ("include", "known_speaker_names", "known_speaker_references", "timestamp_granularities")

# The fields of a segment, in their order.
_OF_SEGMENT = (
    *("id", "seek", "start", "end", "text", "tokens", "temperature"),
    *("avg_logprob", "compression_ratio", "no_speech_prob"),
)

_Format: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": _FORMATS})]
_Granularity: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"enum": (_WORD, _SEGMENT)})]


class _Translation(msgspec.Struct):
    """The fields of both endpoints, apart from the file."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    response_format: _Format = _JSON
    temperature: float = 0.0


class _Transcription(_Translation):
    stream: bool = False
    timestamp_granularities: list[_Granularity] = msgspec.field(default_factory=list, name="timestamp_granularities[]")


async def _transcriptions(service: Service, call: Call) -> Answer:
    form = await _form(service, call)
    asked = _read(form, _Transcription)
    granularities = asked.timestamp_granularities
    for given in granularities:
        if given not in (_WORD, _SEGMENT):
            raise _invalid("timestamp_granularities", f'must be "word" or "segment"; got "{given}"')
    if granularities and asked.response_format != _VERBOSE:
        raise _invalid("timestamp_granularities", "needs the response_format verbose_json")
    if asked.stream and asked.response_format not in (_JSON, _TEXT):
        raise _invalid("stream", "needs the response_format json or text")
    engine, options = _engine(service, call, asked, "transcribe")
    options["word_timestamps"] = _WORD in granularities
    if asked.stream:
        return await _stream(service, call, engine, form, options)
    found = await _transcript(service, call, engine, form, options)
    has_segments = not granularities or _SEGMENT in granularities
    return _answer(found, asked.response_format, "transcribe", has_segments)


async def _translations(service: Service, call: Call) -> Answer:
    form = await _form(service, call)
    asked = _read(form, _Translation)
    if form.fields.get("stream", ["false"])[-1].lower() not in ("false", "0", ""):
        raise _invalid("stream", "is not supported for translations")
    engine, options = _engine(service, call, asked, "translate")
    found = await _transcript(service, call, engine, form, options)
    return _answer(found, asked.response_format, "translate", True)


async def _form(service: Service, call: Call) -> Form:
    """Read the form of a request, if the server has room for a recording."""
    config = service.config
    call.timeout = config.audio_timeout
    if service.num_recordings >= config.max_recordings:
        engines = [engine for engine in service.engines.values() if engine.kind == SPEECH]
        seconds = max((engine.retry_seconds() for engine in engines), default=1)
        message = f"Too many recordings wait; try again in {seconds} s."
        raise Failure("full", message, headers=(("retry-after", str(seconds)), ("connection", "close")))
    service.num_recordings += 1
    call.at_end(service.recording_ended)
    return await read_form(call, _FILE, config.max_audio_bytes)


def _read(form: Form, kind: Any) -> Any:
    """Return the fields of a form as an object of the class `kind`."""
    found: dict[str, Any] = {}
    for given, values in form.fields.items():
        name = given.removesuffix("[]")
        if name in _UNSUPPORTED and any(value not in _UNSUPPORTED[name] for value in values):
            raise _invalid(name, "is not supported")
        if name in _LISTS:
            found[f"{name}[]"] = found.get(f"{name}[]", []) + values
        elif name == _FILE:
            raise _invalid(_FILE, "must be a file, and not a text")
        elif len(values) > 1:
            raise _invalid(name, "must come once")
        elif values[0] or name == "prompt":
            found[name] = values[0].lower() if name == "stream" else values[0]
    try:
        asked = msgspec.convert(found, kind, strict=False)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$.")
        raise _invalid(path.strip("`").split("[")[0], message) from None
    note_unknown(kind, lambda: found.keys() - _UNSUPPORTED.keys())
    if asked.response_format not in _FORMATS:
        known = ", ".join(_FORMATS)
        raise _invalid("response_format", f'must be one of {known}; got "{asked.response_format}"')
    if not 0 <= asked.temperature <= 1:
        raise _invalid("temperature", f"must be from 0 to 1; got {asked.temperature:g}")
    if form.file is None:
        raise _invalid(_FILE, "must be there")
    return asked


def _engine(service: Service, call: Call, asked: _Translation, task: str) -> tuple[SpeechEngine, dict[str, Any]]:
    """Return the model of a request, and the options of `WhisperModel.transcribe`."""
    engine: SpeechEngine = service.engine(call, asked.model, (SPEECH,))
    if task == "translate" and not engine.can_translate:
        message = f"The model {engine.name} is a model of English; translations need a model of several languages."
        raise Failure("invalid", message, "model")
    if asked.language is not None and asked.language not in engine.languages:
        known = ", ".join(engine.languages)
        raise _invalid("language", f'must be a code of the model ({known}); got "{asked.language}"')
    options: dict[str, Any] = {"language": asked.language, "task": task, "initial_prompt": asked.prompt or None}
    options["temperature"] = asked.temperature if asked.temperature > 0 else TEMPERATURES
    return engine, options


async def _transcript(
    service: Service, call: Call, engine: SpeechEngine, form: Form, options: dict[str, Any]
) -> Transcript:
    """Wait for the whole transcript of a recording."""
    request = engine.submit(form.take_file(), options, call.config.max_audio_seconds)
    with _errors_of_recordings():
        found: Transcript = await call.result_of(request)
    _count(service, call, engine, found)
    return found


async def _stream(service: Service, call: Call, engine: SpeechEngine, form: Form, options: dict[str, Any]) -> Answer:
    """Wait for the first segment, and return an answer that goes on with the others. An error before it has a status
    of its own."""
    loop = asyncio.get_running_loop()
    segments: asyncio.Queue[Segment | None] = asyncio.Queue()  # None at the end

    def deliver(segment: Segment | None) -> None:
        loop.call_soon_threadsafe(segments.put_nowait, segment)

    request = engine.submit(form.take_file(), options, call.config.max_audio_seconds, deliver)
    request.add_done_callback(lambda _: deliver(None))
    call.cancel_by(request.cancel)
    call.at_end(request.cancel)
    timer = loop.call_later(call.remaining, call.stop, "timeout")
    call.at_end(timer.cancel)
    first = await segments.get()
    if first is None:
        with _errors_of_recordings():
            call.outcome_of(request)
    return event_stream(_pieces(service, call, engine, request, segments, first))


async def _pieces(
    service: Service,
    call: Call,
    engine: SpeechEngine,
    request: TranscriptRequest,
    segments: "asyncio.Queue[Segment | None]",
    segment: Segment | None,
) -> AsyncIterator[bytes]:
    found: list[Segment] = []
    text = ""
    try:
        while segment is not None:
            found.append(segment)
            whole = text_of(found)
            if len(whole) > len(text):
                yield encoded_event({"type": "transcript.text.delta", "delta": whole[len(text) :]})
            text = whole
            waiting = asyncio.ensure_future(segments.get())
            while not (await asyncio.wait((waiting,), timeout=PING_SECONDS))[0]:
                yield PING
            segment = waiting.result()
        transcript: Transcript = call.outcome_of(request)
    except ClientGone:
        raise
    except Exception as error:
        yield encoded_event({"error": failure_of(error, call.identifier).error})
        return
    _count(service, call, engine, transcript)
    last = {"type": "transcript.text.done", "text": transcript.text, "usage": _usage(transcript)}
    yield encoded_event(last) + DONE


@contextlib.contextmanager
def _errors_of_recordings() -> Iterator[None]:
    try:
        yield
    except RecordingError as error:
        raise _invalid(_FILE, str(error)) from error


def _count(service: Service, call: Call, engine: SpeechEngine, found: Transcript) -> None:
    begun = found.begin + found.queue_seconds
    call.phases += [("queue", found.begin, found.queue_seconds), ("model", begun, monotonic() - begun)]
    service.metrics.transcribed(engine, found.info.duration, found.queue_seconds, found.compute_seconds)
    call.log |= {
        "audio_seconds": round(found.info.duration, 2),
        "completion_tokens": sum(len(segment.tokens) for segment in found.segments),
        "queue_ms": round(1e3 * found.queue_seconds, 2),
        "compute_ms": round(1e3 * found.compute_seconds, 2),
    }


def _answer(found: Transcript, form: str, task: str, has_segments: bool) -> Answer:
    if form == _JSON:
        return answer({"text": found.text, "usage": _usage(found)})
    if form == _VERBOSE:
        return answer(_verbose(found, task, has_segments))
    pieces = [found.text, "\n"] if form == _TEXT else WRITERS[form](found.segments, found.info.language, Layout())
    return Answer("".join(pieces).encode(), content_type="text/plain; charset=utf-8")


def _verbose(found: Transcript, task: str, has_segments: bool) -> dict[str, Any]:
    whole: dict[str, Any] = {
        "task": task,
        "language": LANGUAGES.get(found.info.language, found.info.language),
        "duration": found.info.duration,
        "text": found.text,
        "usage": _usage(found),
    }
    if found.info.transcription_options.word_timestamps:
        words = [word for segment in found.segments for word in segment.words or ()]
        whole["words"] = [{"word": word.word.strip(), "start": word.start, "end": word.end} for word in words]
    if has_segments:
        whole["segments"] = [
            {name: getattr(segment, name) for name in _OF_SEGMENT} | {"id": i}
            for i, segment in enumerate(found.segments)
        ]
    return whole


def _usage(found: Transcript) -> dict[str, Any]:
    return {"type": "duration", "seconds": math.ceil(found.info.duration)}


def _invalid(param: str, rule: str) -> Failure:
    return Failure("invalid", f"{param}: {rule}", param)


# Names of languages by their codes, as the API of OpenAI and openai-whisper have them.
_NAMES = (
    "en:english, zh:chinese, de:german, es:spanish, ru:russian, ko:korean, fr:french, ja:japanese, "
    "pt:portuguese, tr:turkish, pl:polish, ca:catalan, nl:dutch, ar:arabic, sv:swedish, it:italian, "
    "id:indonesian, hi:hindi, fi:finnish, vi:vietnamese, he:hebrew, uk:ukrainian, el:greek, ms:malay, "
    "cs:czech, ro:romanian, da:danish, hu:hungarian, ta:tamil, no:norwegian, th:thai, ur:urdu, hr:croatian, "
    "bg:bulgarian, lt:lithuanian, la:latin, mi:maori, ml:malayalam, cy:welsh, sk:slovak, te:telugu, "
    "fa:persian, lv:latvian, bn:bengali, sr:serbian, az:azerbaijani, sl:slovenian, kn:kannada, et:estonian, "
    "mk:macedonian, br:breton, eu:basque, is:icelandic, hy:armenian, ne:nepali, mn:mongolian, bs:bosnian, "
    "kk:kazakh, sq:albanian, sw:swahili, gl:galician, mr:marathi, pa:punjabi, si:sinhala, km:khmer, "
    "sn:shona, yo:yoruba, so:somali, af:afrikaans, oc:occitan, ka:georgian, be:belarusian, tg:tajik, "
    "sd:sindhi, gu:gujarati, am:amharic, yi:yiddish, lo:lao, uz:uzbek, fo:faroese, ht:haitian creole, "
    "ps:pashto, tk:turkmen, nn:nynorsk, mt:maltese, sa:sanskrit, lb:luxembourgish, my:myanmar, bo:tibetan, "
    "tl:tagalog, mg:malagasy, as:assamese, tt:tatar, haw:hawaiian, ln:lingala, ha:hausa, ba:bashkir, "
    "jw:javanese, su:sundanese, yue:cantonese"
)
LANGUAGES = dict(pair.split(":") for pair in _NAMES.split(", "))

ENDPOINTS = [
    Endpoint(
        *("POST", "/v1/audio/transcriptions", _transcriptions),
        body=_Transcription,
        file=_FILE,
        about="The text of a recording, as the API of OpenAI has it",
    ),
    Endpoint(
        *("POST", "/v1/audio/translations", _translations),
        body=_Translation,
        file=_FILE,
        about="The text of a recording in English, as the API of OpenAI has it",
    ),
]
