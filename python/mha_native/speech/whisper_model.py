"""`WhisperModel`: transcripts of speech, with the call of faster-whisper."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..functions.arrays import to_numpy
from ..functions.messages import in_the_name_of, listed, shown
from ..functions.scalars import checked_boolean, checked_integer, checked_real
from ..layers._constructor_arguments import WeightDType
from ..models.files.hub_cache import find_directory
from ..models.speech_seq2seq import SpeechSeq2Seq
from ..models.text.tokenizer import NoTokenizer
from ._audio import SAMPLING_RATE, Audio, AudioSource, Joined, open_audio
from ._calls import Calls, in_recording, vad_options_of, with_progress
from ._mel import LogMel
from ._options import (
    APPENDED,
    PREPENDED,
    TEMPERATURES,
    Segment,
    TranscriptionInfo,
    seconds,
)
from ._prompt import SpeechTokens
from ._transcribe import FRAMES_PER_SECOND, Transcriber, Windows, clips, detect
from ._voice_activity import SpanTimes, VadOptions, speech_spans

# Names of sizes, and the repositories with files of CTranslate2 that faster-whisper has for them.
_REPOSITORIES = {
    **{
        name: f"Systran/faster-whisper-{name}"
        for name in (
            *("tiny.en", "tiny", "base.en", "base", "small.en", "small", "medium.en", "medium"),
            *("large-v1", "large-v2", "large-v3"),
        )
    },
    "large": "Systran/faster-whisper-large-v3",
    **{
        name: f"Systran/faster-distil-whisper-{name.removeprefix('distil-')}"
        for name in ("distil-large-v2", "distil-medium.en", "distil-small.en", "distil-large-v3")
    },
    "distil-large-v3.5": "distil-whisper/distil-large-v3.5-ct2",
    "large-v3-turbo": "mobiuslabsgmbh/faster-whisper-large-v3-turbo",
    "turbo": "mobiuslabsgmbh/faster-whisper-large-v3-turbo",
}

# Formats of weights by compute_type. All sums are float32.
_COMPUTE_TYPES: dict[str, str | None] = {
    "default": None,
    "auto": None,
    "float32": None,
    "int8": "int8",
    "int8_float32": "int8",
    "bfloat16": "bfloat16",
}


class WhisperModel:
    """Whisper, a model of speech, with the arguments and results of faster-whisper 1.2.

    Parameters
    ----------
    model_size_or_path : str or path
        A directory in the files of CTranslate2 or of transformers, the name of a model on the hub of Hugging Face, or a
        size such as "tiny.en", "base", "small", "large-v3", "turbo" or "distil-large-v3", with "whisper-" before it or
        not. A name is looked up in the local cache, and downloaded if it is not there and huggingface_hub is installed.
    device : {"cpu", "auto"}, default "auto"
        Other devices are not supported.
    device_index : 0
        Other values are not supported.
    compute_type : str, default "default"
        "default", "auto" and "float32": weights in float32. "int8", "int8_float32" and "bfloat16": weights in this
        format. Other types of CTranslate2 are not supported.
    cpu_threads : int, default 0
        Threads of all calls; 0: `mha_native.num_threads`.
    num_workers : int, default 1
        Without effect: calls from several threads always run at the same time.
    download_root : path, optional
        The cache of models; default: the cache of Hugging Face.
    local_files_only : bool, default False
        Download nothing.
    files : None
        Files in memory are not supported.
    revision : str, optional
        A branch, tag or commit of a named model.
    use_auth_token : str or bool, optional
        Token for private models.
    weight_dtype : str, optional
        The format of the weights, as for `SpeechSeq2Seq.from_pretrained`, instead of `compute_type`.
    **model_kwargs
        Further arguments of CTranslate2 are not supported.

    Raises
    ------
    FileNotFoundError, ValueError, OSError, ImportError
        As `SpeechSeq2Seq.from_pretrained` does.

    Examples
    --------
    >>> from mha_native.speech import WhisperModel
    >>> model = WhisperModel("tiny.en")
    >>> segments, info = model.transcribe("talk.wav", beam_size=5, word_timestamps=True)
    >>> for segment in segments:  # text appears while it is transcribed
    ...     print(segment.text)
     It's in an ancient mariner and he's top of one on three.
    """

    def __init__(
        self,
        model_size_or_path: str | PathLike[str],
        device: str = "auto",
        device_index: int | list[int] = 0,
        compute_type: str = "default",
        cpu_threads: int = 0,
        num_workers: int = 1,
        download_root: str | PathLike[str] | None = None,
        local_files_only: bool = False,
        files: None = None,
        revision: str | None = None,
        use_auth_token: str | bool | None = None,
        weight_dtype: WeightDType = None,
        **model_kwargs: Any,
    ) -> None:
        name = "WhisperModel"
        if not isinstance(device, str) or device not in ("auto", "cpu"):
            raise ValueError(f"{name}: device must be 'cpu', where this library computes; got {shown(device)}")
        for index in device_index if isinstance(device_index, list) else [device_index]:
            if not isinstance(index, int) or index != 0:
                raise ValueError(f"{name}: device_index must be 0, the CPU; got {shown(device_index)}")
        if files is not None:
            raise ValueError(f"{name}: files must be None, since a model is read from a directory")
        if model_kwargs:
            raise TypeError(f"{name}: got an unexpected keyword argument {shown(next(iter(model_kwargs)))}")
        if not isinstance(compute_type, str) or compute_type not in _COMPUTE_TYPES:
            raise ValueError(f"{name}: compute_type must be one of {listed(_COMPUTE_TYPES)}; got {shown(compute_type)}")
        if weight_dtype is not None and compute_type not in ("default", "auto"):
            raise ValueError(f"{name}: weight_dtype and compute_type={compute_type!r} exclude each other")
        checked_integer(name, "num_workers", num_workers, 1)
        threads = checked_integer(name, "cpu_threads", cpu_threads, 0) or None
        with in_the_name_of(name, model="model_size_or_path"):
            folder = find_directory(
                _repository(model_size_or_path),
                cache_folder=download_root,
                revision=revision,
                local_files_only=local_files_only,
                token=use_auth_token,
                organization=None,
            )
            stored = _COMPUTE_TYPES[compute_type] if weight_dtype is None else weight_dtype
            self.model = SpeechSeq2Seq.from_pretrained(folder, weight_dtype=stored, num_threads=threads)
            tokenizer = self.model.tokenizer
            if isinstance(tokenizer, NoTokenizer):
                tokenizer.refuse(f"{folder}: transcripts")
            tokens = SpeechTokens(tokenizer, self.model.max_target_positions)
        self._calls = Calls(self.model, tokens, LogMel(self.model.mel_bins, threads))

    @property
    def supported_languages(self) -> list[str]:
        """The codes of the languages of the model."""
        return sorted(self._calls.tokens.languages) if self.model.multilingual else ["en"]

    def transcribe(
        self,
        audio: AudioSource,
        language: str | None = None,
        task: str = "transcribe",
        log_progress: bool = False,
        beam_size: int = 5,
        best_of: int = 5,
        patience: float = 1,
        length_penalty: float = 1,
        repetition_penalty: float = 1,
        no_repeat_ngram_size: int = 0,
        temperature: float | Sequence[float] = TEMPERATURES,
        compression_ratio_threshold: float | None = 2.4,
        log_prob_threshold: float | None = -1.0,
        no_speech_threshold: float | None = 0.6,
        condition_on_previous_text: bool = True,
        prompt_reset_on_temperature: float = 0.5,
        initial_prompt: str | Iterable[int] | None = None,
        prefix: str | None = None,
        suppress_blank: bool = True,
        suppress_tokens: Sequence[int] | None = (-1,),
        without_timestamps: bool = False,
        max_initial_timestamp: float = 1.0,
        word_timestamps: bool = False,
        prepend_punctuations: str = PREPENDED,
        append_punctuations: str = APPENDED,
        multilingual: bool = False,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        max_new_tokens: int | None = None,
        chunk_length: int | None = None,
        clip_timestamps: str | Sequence[float] = "0",
        hallucination_silence_threshold: float | None = None,
        hotwords: str | None = None,
        language_detection_threshold: float | None = 0.5,
        language_detection_segments: int = 1,
    ) -> tuple[Iterator[Segment], TranscriptionInfo]:
        """Transcribe a recording, window by window of 30 seconds.

        Parameters
        ----------
        audio : path, file object, or array [samples] at 16 kHz
            As for `decode_audio`.
        language : str, optional
            A code such as "en". Default: detected in the first windows, or English for a model of English.
        task : {"transcribe", "translate"}, default "transcribe"
            Translations are English, by a model of several languages.
        log_progress : bool, default False
            Show the seconds that are done on standard error.
        beam_size, patience : int, float, default 5, 1
            Number of beams at temperature 0. The search ends with ``beam_size * patience`` texts.
        best_of : int, default 5
            Texts that are drawn at a temperature above 0, of which the best one counts.
        length_penalty : float, default 1
            Scores of texts are log-probabilities, divided by the number of tokens to this power.
        repetition_penalty, no_repeat_ngram_size : float, int, default 1, 0
            Make tokens of the window rarer after their first use, above 1; a run of so many tokens occurs at most once,
            0: no limit.
        temperature : float or list of floats, default 0, 0.2, 0.4, 0.6, 0.8, 1
            The temperatures that are tried, one after another, while a text fails. The same random numbers are drawn in
            each call.
        compression_ratio_threshold, log_prob_threshold : float or None, default 2.4, -1
            A text fails if its compression ratio is higher, or its mean log-probability lower. None: no limit.
        no_speech_threshold : float or None, default 0.6
            A window is silent if the probability that nobody speaks is higher, and the text is improbable.
        condition_on_previous_text, prompt_reset_on_temperature : bool, float, default True, 0.5
            The decoder reads the text of earlier windows, unless one of them needed a higher temperature.
        initial_prompt : str or list of tokens, optional
            Text before the first window.
        prefix : str, optional
            The beginning of the text of the first window.
        suppress_blank : bool, default True
            No window begins with a space or the end of the text.
        suppress_tokens : list of int, optional
            Tokens that are never written. -1 stands for marks that nobody speaks, such as brackets.
        without_timestamps : bool, default False
            A segment is a whole window.
        max_initial_timestamp : float, default 1.0
            The latest begin of the first segment of a window, in seconds after the begin of the window.
        word_timestamps : bool, default False
            Find the times of words.
        prepend_punctuations, append_punctuations : str
            Marks that belong to the next word, and to the one before.
        multilingual : bool, default False
            Detect the language of each window.
        vad_filter : bool, default False
            Transcribe only where somebody speaks. Without effect if `clip_timestamps` is given.
        vad_parameters : dict or VadOptions, optional
            Options of this filter.
        max_new_tokens : int, optional
            The most tokens of a window, without the prefix. There are never more than 224.
        chunk_length : int, optional
            Seconds of a window, from 1 to 30.
        clip_timestamps : str or list of floats, default "0"
            Seconds where parts begin and end: start, end, start, end ... The last part may have no end.
        hallucination_silence_threshold : float, optional
            With `word_timestamps`, skip so many seconds of silence around text that probably nobody spoke.
        hotwords : str, optional
            Words that are likely in the recording. Without effect if there is a `prefix`.
        language_detection_threshold, language_detection_segments : float or None, int, default 0.5, 1
            The language is the first one with a higher probability in one of so many windows, else the most frequent.

        Returns
        -------
        segments : iterator of Segment
            Each segment is computed when you ask for it. Closing the iterator ends the work.
        info : TranscriptionInfo

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or the recording is damaged: in this call, before the first segment.
        """
        given = {name: value for name, value in locals().items() if name not in ("self", "audio")}
        name = "WhisperModel.transcribe"
        arguments = self._calls.checked(name, given)
        with in_the_name_of(name, source="audio"):
            source: Audio = open_audio(audio, function=name)
            length = source.length
        duration = length / SAMPLING_RATE
        spans, vad_options = None, None
        if arguments["vad_filter"] and isinstance(clip_timestamps, str) and clip_timestamps == "0":
            vad_options = vad_options_of(name, vad_parameters)
            spans = speech_spans(source, vad_options)
            source = Joined(source, spans)
        windows = self._calls.windows(source, arguments["chunk_length"])
        times = seconds(name, "clip_timestamps", clip_timestamps)
        parts = clips(times, windows.num_frames)
        first = parts[0][0] if parts[0][0] < windows.num_frames else 0
        language, probability, all_languages = self._calls.language(arguments, windows, first)
        options = self._calls.options(arguments, times)
        transcriber = Transcriber(name, self.model, self._calls.tokens, options, language, task)
        segments = transcriber.segments(windows, parts)
        if arguments["log_progress"]:
            segments = with_progress(segments, windows.num_frames / FRAMES_PER_SECOND)
        if spans:
            segments = in_recording(segments, SpanTimes(spans))
        info = TranscriptionInfo(
            language=language,
            language_probability=probability,
            duration=duration,
            duration_after_vad=source.length / SAMPLING_RATE,
            all_language_probs=all_languages,
            transcription_options=options,
            vad_options=vad_options,
        )
        return segments, info

    def detect_language(
        self,
        audio: AudioSource | None = None,
        features: NDArray[np.float32] | None = None,
        vad_filter: bool = False,
        vad_parameters: dict[str, Any] | VadOptions | None = None,
        language_detection_segments: int = 1,
        language_detection_threshold: float = 0.5,
    ) -> tuple[str, float, list[tuple[str, float]]]:
        """Detect the language of a recording.

        Parameters
        ----------
        audio : path, file object, or array [samples] at 16 kHz
        features : float array [mel_bins, frames], optional
            The spectrogram instead of `audio`.
        vad_filter, vad_parameters, language_detection_segments, language_detection_threshold
            As for `transcribe`.

        Returns
        -------
        language : str
        probability : float
        all_probabilities : list of (str, float)
            The probabilities of all languages in the last window that was read, the largest first.

        Raises
        ------
        TypeError, ValueError
            If an argument breaks a rule, or the model is one of English.
        """
        name = "WhisperModel.detect_language"
        if not self.model.multilingual:
            raise ValueError(f"{name}: the model must know several languages; this one is a model of English")
        count = checked_integer(name, "language_detection_segments", language_detection_segments, 1)
        threshold = checked_real(name, "language_detection_threshold", language_detection_threshold)
        if audio is not None:
            is_filtered = checked_boolean(name, "vad_filter", vad_filter)
            with in_the_name_of(name, source="audio"):
                source: Audio = open_audio(audio, function=name)
                windows = self._calls.windows(source, None)
            if is_filtered:
                source = Joined(source, speech_spans(source, vad_options_of(name, vad_parameters)))
                windows = self._calls.windows(source, None)
        elif features is not None:
            spectrogram = _checked_features(name, features, self.model.mel_bins)
            windows = Windows(self.model, _Spectrogram(spectrogram), spectrogram.shape[1])
        else:
            raise ValueError(f"{name}: needs audio or features")
        return detect(self.model, self._calls.tokens, windows, 0, count, threshold)


def _checked_features(function: str, features: Any, mel_bins: int) -> NDArray[np.float32]:
    """Return a spectrogram that a caller gave, float32 [mel_bins, frames], or raise TypeError or ValueError."""
    given = np.asarray(to_numpy(function, "features", features))
    if given.dtype.kind != "f":
        raise TypeError(f"{function}: features must be an array of a float dtype; got {shown(features)}")
    if given.ndim != 2 or len(given) != mel_bins or not given.shape[1]:
        raise ValueError(
            f"{function}: features must be [{mel_bins}, frames] with a frame at least; got {list(given.shape)}"
        )
    found: NDArray[np.float32] = given.astype(np.float32, copy=False)
    return found


class _Spectrogram:
    """Features that a caller gave, [mel_bins, frames], in windows."""

    def __init__(self, features: NDArray[np.float32]) -> None:
        self._features = features

    def window(self, first: int, last: int) -> NDArray[np.float32]:
        """Return the frames from `first` to `last`, without it."""
        return self._features[:, first:last]


def _repository(model: str | PathLike[str]) -> str | PathLike[str]:
    """Return the repository of a size of model, or what was given."""
    found = _REPOSITORIES.get(model.removeprefix("whisper-")) if isinstance(model, str) else None
    return model if found is None or Path(model).exists() else found
