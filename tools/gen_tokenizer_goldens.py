#!/usr/bin/env python3
"""Makes tests/goldens/tokenizer: small tokenizers and the ids that Hugging Face's library gives.

Needs the PyPI package `tokenizers` (goldens made with 0.23). Run from the repository's root:
  python3 tools/gen_tokenizer_goldens.py
Each tokenizer is trained here on the text below; NAME.tokenizer.json is its file, and NAME.cases.json
a list of {"text", "ids", "ids_special", "decoded"}. Written once, then compared exactly.
"""

import json
import pathlib
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers
from tokenizers import pre_tokenizers, processors, trainers

OUT = pathlib.Path(__file__).resolve().parent.parent / "tests/goldens/tokenizer"
VOCAB_SIZE = 700

QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)

TRAINING = [
    "The quick brown fox jumps over the lazy dog. It's what they'd say; we'll see, I'm sure you've seen.",
    "Solve for x: 12 + 34 = 46, then 3.14159 * 2 = 6.28318. The answer is 42.",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n\tif x:\n\t\tpass\r\n",
    "Größe, façade, naïve, Ångström, señor, Übermut; Füße über Straßen. Ελληνικά και русский язык.",
    "你好,世界。数学题:请计算一加一等于几? こんにちは世界 안녕하세요 세계",
    "مرحبا بالعالم שלום עולם नमस्ते दुनिया ภาษาไทย",
    "👋🌍 👩‍👩‍👧‍👦 🇩🇪 😀😀😀 ❤️",
    "the the the then there these those that this; in on at of to and a an; ing ed tion ment",
]

TEXTS = [
    "",
    " ",
    "  ",
    "a",
    "Hello, world!",
    "The quick brown fox jumps over the lazy dog.",
    "It's what they'd say; WE'LL see, I'M sure YOU'VE seen 'em. 'S 'ſ 'Re 'x' ''s",
    "don't'nt o'clock 'tis 'd 'm 'RE'VE",
    "12345678901234567890 1 22 333 4444 3.14159 1,000,000 ٣٤٥ ⅷ ² ½ ৫৬",
    "x=1+2*3/4-5%6^7&8|9~0!@#$%^&*()_+{}[]:\";'<>?,./\\`",
    "tabs\tand\t\ttabs \t mixed\t \tend\t",
    "line\nline\n\nline\r\nline\r\r\n \n  \n   x\n   ",
    "   leading and trailing   ",
    "a  b   c    d     e\n\n\n\nf",
    "non\u00a0breaking\u00a0\u00a0space \u2003em\u2003\u2003space \u3000x\u3000 \u2028 \u2029 \u0085 \u200b\u180e y",
    "\u180ea \u180e b\u180e\u180e \u1680x\u202f\u205f.",
    "Größe façade naïve Ångström señor",
    "Gro\u0308\u00dfe fac\u0327ade nai\u0308ve A\u030angstro\u0308m sen\u0303or \u212b \u2126",
    "e\u0301\u0323 \u1e9b\u0323 \u0344 q\u0307\u0323 \ufb01 \ufb03 \u1100\u1161\u11a8 \uac00\u11a8",
    "a\u0300\u0301\u0302\u0303b \u0301x \u0301 \u0958 \u0929\u093c \u2adc",
    "你好,世界。数学题:请计算一加一等于几?",
    "こんにちは 안녕하세요 مرحبا שלום नमस्ते ภาษาไทย",
    "👋🌍 👩‍👩‍👧‍👦 🇩🇪 😀😀😀 ❤️ 🏽 a👍🏽b",
    "\U0001d54f\U0001d7d8\U00010400 \U0001f468\u200d\U0001f680 \U000e0001 \U0010ffff \ufffd \ufeffbom",
    "zero\u0000byte \u0001\u0007\u001b\u007f\u0080\u009f end",
    "<|endoftext|>",
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n<|im_start|>assistant\n",
    "a<|endoftext|>b <|endoftext|> c<|endoftext|><|im_end|>",
    "<|endoftext <|im_start|<|im_start|>|> |endoftext|>",
    "<think>\nstep\n</think>\n\n<think></think><thin>",
    "wordstrip STRIP word STRIP  \n next  STRIPSTRIP x STRIPx",
    "SINGLE xSINGLE SINGLEx SINGLE, _SINGLE_ éSINGLE SINGLE1 (SINGLE) SINGLE\u0301 SINGLESINGLE",
    "LEFT  LEFT x \u3000LEFT\nLEFTRIGHT  RIGHT\n\nRIGHT  STRIP  LEFT RIGHT ",
    "Ä\u0308 cafe\u0303 CAF\u00c9 cafe\u0301 cafe\u0303cafe caf\u1ebd caf\u00e9 cafe",
    "long longer longest longlonger <tag> <tag>> <tag>>>",
    "def add(a, b):\n    return a + b\n\nprint(add(1, 2))\n\tif x:\n\t\tpass\r\n",
    "the the the then there these those that this inin inging tiontion mentmentment",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethetheinginginginginginginginginginginginging" * 4,
    " " * 300 + "x" + " " * 7,
    "\n" * 40 + " \n" * 10 + "y",
    "日本語" * 30,
    "1234567" * 20 + " " + "9" * 10,
    "\u0130stanbul \u0131 \u1e9e \u01c5 K\u212a ſ",
]


def random_texts(count, seed):
    """Texts from an alphabet where rules collide."""
    pick = random.Random(seed)
    alphabet = (
        list(" \t\n\r'\"sStTrReEvVmMlLdD019.,!_-") + ["the", "ing", " the", "\u00e9", "e\u0301", "\u0308"]
        + ["ß", "你", "好", "😀", "\u200d", "\u00a0", "\u3000", "٣", "²", "<|im_end|>", "STRIP", "LEFT"]
        + ["RIGHT", "SINGLE", "long", "er", "  ", "\r\n", "'ll", "caf\u1ebd", "cafe\u0303", "\u1100\u1161", "\u180e"]
    )
    return ["".join(pick.choice(alphabet) for _ in range(pick.randint(1, 40))) for _ in range(count)]


def byte_level(use_regex, add_prefix_space=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=add_prefix_space, use_regex=use_regex)


def split(pattern):
    parts = [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level(False)]
    return pre_tokenizers.Sequence(parts)


def train(pre_tokenizer, normalizer=None, vocab_size=VOCAB_SIZE, **options):
    tokenizer = Tokenizer(models.BPE(**options))
    tokenizer.pre_tokenizer = pre_tokenizer
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(TRAINING, trainer)
    return tokenizer


def make_qwen2():
    tokenizer = train(split(QWEN2), normalizers.NFC())
    special = [AddedToken(t, special=True, normalized=False)
               for t in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens([
        AddedToken("<think>", normalized=False), AddedToken("</think>", normalized=False),
        AddedToken("STRIP", lstrip=True, rstrip=True, normalized=False),
        AddedToken("LEFT", lstrip=True, normalized=True),
        AddedToken("RIGHT", rstrip=True, normalized=False),
        AddedToken("SINGLE", single_word=True, normalized=False),
        AddedToken("cafe\u0303", normalized=True),
        AddedToken("long", normalized=False), AddedToken("longer", normalized=False),
        AddedToken("<tag>", normalized=True), AddedToken("<tag>>", normalized=True),
    ])
    return tokenizer


def make_gpt2(add_prefix_space=False):
    tokenizer = train(byte_level(True, add_prefix_space))
    tokenizer.add_special_tokens([AddedToken("<|endoftext|>", special=True, normalized=False)])
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=True)
    return tokenizer


def make_llama3():
    tokenizer = train(split(LLAMA3), ignore_merges=True)
    # A token that no merge makes: ignore_merges takes it whole.
    spec = json.loads(tokenizer.to_str())
    spec["model"]["vocab"]["\u0120Hello"] = len(spec["model"]["vocab"])
    spec["model"]["vocab"]["worldwide"] = len(spec["model"]["vocab"])
    tokenizer = Tokenizer.from_str(json.dumps(spec))
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>", "<|im_end|>"])
    bos = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(
            single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|> $B",
            special_tokens=[("<|begin_of_text|>", bos)]),
    ])
    return tokenizer


def make_splits():
    """String patterns, removed matches, digits, several steps, NFC in a sequence."""
    steps = pre_tokenizers.Sequence([
        pre_tokenizers.Split(" ", "removed"), pre_tokenizers.Split("'", "isolated"),
        pre_tokenizers.Split(Regex(r"\p{Han}{2}|[\r\n]"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True), byte_level(False),
    ])
    return train(steps, normalizers.Sequence([normalizers.NFC()]), vocab_size=400)


def make_whitespace():
    steps = [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Digits(individual_digits=False)]
    return train(pre_tokenizers.Sequence(steps + [byte_level(False)]), vocab_size=400)


def cases(tokenizer, texts):
    result = []
    for text in texts:
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        case = {"text": text, "ids": ids}
        special = tokenizer.encode(text, add_special_tokens=True).ids
        if special != ids:
            case["ids_special"] = special
        decoded = tokenizer.decode(ids, skip_special_tokens=False)
        if decoded != text:
            case["decoded"] = decoded
        skipped = tokenizer.decode(ids, skip_special_tokens=True)
        if skipped != decoded:
            case["decoded_without_special"] = skipped
        result.append(case)
    return result


def old_merges(text):
    """The spelling of merges that files had before the library's version 0.20."""
    spec = json.loads(text)
    spec["model"]["merges"] = [" ".join(pair) for pair in spec["model"]["merges"]]
    return json.dumps(spec, ensure_ascii=False)


def write_characters():
    """What make_character_tokenizer_json("0123456789 +=>\\n\\"\\\\~", two special tokens) writes."""
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    symbol = {" ": "\u0120", "\n": "\u010a"}
    vocab = {symbol.get(c, c): i for i, c in enumerate('0123456789 +=>\n"\\~')}
    added = [{"id": len(vocab) + i, "content": content, "single_word": False, "lstrip": False,
              "rstrip": False, "normalized": False, "special": True}
             for i, content in enumerate(["<|pad|>", "<|eos|>"])]
    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
             "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
             "ignore_merges": False, "vocab": vocab, "merges": []}
    spec = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added,
            "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level,
            "model": model}
    text = json.dumps(spec, indent=2, ensure_ascii=False) + "\n"
    texts = ["", "12 + 30 = 42<|eos|>\n", "<|pad|><|pad|>0>1", "\\\"~", "9<|eos>|"[:1], "  \n\n 7"]
    write("characters", text, cases(Tokenizer.from_str(text), texts))


def write(name, tokenizer_json, case_list):
    (OUT / f"{name}.tokenizer.json").write_text(tokenizer_json, encoding="utf-8")
    body = ",\n".join(json.dumps(case, separators=(",", ":")) for case in case_list)
    (OUT / f"{name}.cases.json").write_text(f"[\n{body}\n]\n", encoding="utf-8")


def main():
    OUT.mkdir(parents=True, exist_ok=True)
    made = {
        "qwen2": make_qwen2(),
        "gpt2": make_gpt2(),
        "gpt2_prefix_space": make_gpt2(add_prefix_space=True),
        "llama3": make_llama3(),
        "splits": make_splits(),
        "whitespace": make_whitespace(),
    }
    texts = TEXTS + [" Hello Hello worldwide worldwider Worldwide"]
    for seed, (name, tokenizer) in enumerate(made.items()):
        text = tokenizer.to_str()
        if name == "gpt2":
            text = old_merges(text)
            Tokenizer.from_str(text)
        write(name, text + "\n", cases(tokenizer, texts + random_texts(40, seed)))
    write_characters()


if __name__ == "__main__":
    main()
