#!/usr/bin/env python3
"""Makes small tokenizers and what Hugging Face `tokenizers` says of many texts under them.

tokenizers/byte_level.json and tokenizers/sentencepiece.json hold a vocabulary with merges each, trained without words, so
that merges reach across every place where a pre-tokenizer may cut. tokenizers/variants.json holds what surrounds them:
normalizers, pre-tokenizers, post-processors, added tokens as in the files of well-known models. tokenizers/vectors.json
holds the ids, for the longer list of random texts a hash of them only.

Needs: pip install tokenizers==0.23.3
"""

import json
import pathlib
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

HERE = pathlib.Path(__file__).parent
OUT = HERE / "tokenizers"

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
          r"\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
O200K = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK_V3 = (r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"
               r" ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+").replace('\\"', '"')

TEXTS = [
    "", " ", "  ", "\n", "\r\n", "\r\n\r\n \n", "\t\t x", "a", "Hello world! Café déjà vu — 123 😊",
    "Hello\u2029world\u2028again", "no\u00a0break\u00a0 space", "next\u0085line", "mongolian\u180evowel", "12345",
    "it's I'LL we'Re YOU'D 'ſ ꞌ's", "1a2b3c 4,567.89 $3.14 №5", "line one\r\nline two\r\n\r\n  indented\n\ttab",
    "価格は1234円です。", "你好，世界！123", "한국어 텍스트 456", "Привет, мир! Ёлка", "مرحبا بالعالم ١٢٣", "हिन्दी पाठ १२३",
    "ภาษาไทย ไม่มีช่องว่าง", "e\u0301 vs é, A\u030a vs Å, \u1112\u1161\u11ab", "ﬁ ﬂ ½ ² Ⅷ ①", "İstanbul ıI ß ẞ Σς",
    "👩‍👩‍👧‍👦 🇩🇪🇫🇷 👍🏽 ☺️", "\u200bzero\u200cwidth\u200djoin\ufeffbom", "x" * 70, " " * 40 + "x", "ab" * 40,
    "<s>special</s> <|im_start|>user\nhi<|im_end|>", " <mask> and<mask> too  <mask>", "word<single> <single>word <single> a<single>b",
    "<|im_start|><|im_start|>", "UPPERCASE lower MiXeD CamelCaseWords snake_case_words kebab-case",
    "def f(x):\n    return x ** 2  # comment\n\n\nclass A:\n\tpass", "https://example.org/a?b=c&d=e#f", "{\"key\": [1, 2.5, null]}",
    "!!!???...,,,;;;:::", "a  b   c    d     e", " leading and trailing ", "\u3000ideographic\u3000space\u3000",
    "\x00\x01\x1f\x7f", "\ufffd\ufffd", "𝒜𝓑 𝟙𝟚𝟛 𐐀𐐨", "a\u0300\u0301\u0302\u0303b", "o'clock rock'n'roll 'tis", "½cup 3½ 10⁻³ H₂O x²",
    "１２３ ＡＢＣ ａｂｃ", "▁under▁bars ▁", "Ġdot Ċnew", "<0x41> <0xE4>", "tab\there\x0bvt\x0cff", "ⓐⒷ 🅰 ㈱ ㊗", "ǅ ǈ ǋ ʰʱ ªº",
    "١٢٣٤٥٦٧ ৪৫৬ ௧௨௩ 一二三", "...\n\n...", "end with newline\n", "\n\n\nstart with newlines", "1\n2\n3", "a\n b\n  c", "'S'T'RE", "’s “quoted” ‘text’",
]


def random_texts(count):
    rng = random.Random(11)
    pools = [
        "abcdefghijklmnopqrstuvwxyz", "ABCXYZ", "0123456789", " \t\n\r", " ", ".,;:!?'\"()[]{}<>-_/\\|@#$%^&*+=~`",
        "éüñçßøåÉÜ", "\u0300\u0301\u0308\u0327", "你好世界中文字符漢字", "ひらがなカタカナ", "한국어가나다", "приветПРИВЕТ", "αβγδΣΩς",
        "مرحبا", "हिन्दी", "😀😂🤖👍🏽", "\u200d\ufe0f\u200b", "\u00a0\u2003\u3000\u2028\u0085", "½²³Ⅳ①", "€£¥©®™—…“”",
        "'s", "'ll", "'RE", "the ", " of", "ing", "<s>", "</s>", "<|im_start|>", "<mask>", "<single>",
    ]
    texts = []
    for _ in range(count):
        parts = []
        for _ in range(rng.randint(1, 30)):
            pool = rng.choice(pools)
            if len(pool) <= 14 and pool[0] in "'<t io":
                parts.append(pool)
            else:
                parts.append("".join(rng.choice(pool) for _ in range(rng.randint(1, 5))))
        texts.append("".join(parts))
    return texts


def corpus():
    lines = [text for text in TEXTS for _ in range(3)]
    for path in sorted((HERE / "../../../models/reasoner/questions").glob("*.jsonl")):
        for line in path.read_text().splitlines()[:40]:
            lines.append(json.loads(line)["messages"][0]["content"])
    lines += [path.read_text() for path in sorted((HERE / "templates").glob("*.jinja"))]
    lines += random_texts(300)
    return lines


def added(id, content, **flags):
    token = {"id": id, "content": content, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
             "special": True}
    token.update(flags)
    return token


def split(pattern, behavior="Isolated", invert=False):
    return {"type": "Split", "pattern": {"Regex": pattern}, "behavior": behavior, "invert": invert}


def byte_level(use_regex=True, prefix=False):
    return {"type": "ByteLevel", "add_prefix_space": prefix, "trim_offsets": True, "use_regex": use_regex}


def sequence(*steps):
    return {"type": "Sequence", "pretokenizers": list(steps)}


def template(*pieces, tokens):
    return {
        "type": "TemplateProcessing",
        "single": [{"Sequence": {"id": "A", "type_id": 0}} if p == "$A" else {"SpecialToken": {"id": p, "type_id": 0}}
                   for p in pieces],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in tokens.items()},
    }


NOT_SPECIAL = {"special": False}


def added_tokens(vocab):
    """A text that the vocabulary has keeps its id; the others follow the vocabulary."""
    flags = {"<s>": {}, "</s>": {}, "<|im_start|>": {}, "<|im_end|>": {}, "<mask>": {"lstrip": True} | NOT_SPECIAL,
             "<single>": {"single_word": True, "rstrip": True} | NOT_SPECIAL}
    tokens, next_id = [], len(vocab)
    for content, more in flags.items():
        tokens.append(added(vocab.get(content, next_id), content, **more))
        next_id += content not in vocab
    return tokens


def variants(bases):
    tokens = added_tokens(bases["byte_level"]["vocab"])
    spm_tokens = added_tokens(bases["sentencepiece"]["vocab"])
    first, last = tokens[0]["id"], tokens[1]["id"]
    bos = {"<s>": first}
    spm_bos = {"<s>": spm_tokens[0]["id"]}
    cjk = "[一-龥぀-ゟ゠-ヿ]+"
    byte_decoder = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}

    def byte(name, pre, **more):
        return {"name": name, "base": "byte_level", "added_tokens": tokens, "normalizer": None, "pre_tokenizer": pre,
                "post_processor": None, "decoder": byte_decoder, "model": {}} | more

    spm_decoder = {"type": "Sequence", "decoders": [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}
    replace = {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    prepend = {"type": "Prepend", "prepend": "▁"}

    def spm(name, **more):
        base = [dict(t, normalized=more.get("normalized", False)) for t in spm_tokens]
        more.pop("normalized", None)
        return {"name": name, "base": "sentencepiece", "added_tokens": base, "normalizer": None, "pre_tokenizer": None,
                "post_processor": template("<s>", "$A", tokens=spm_bos), "decoder": spm_decoder, "model": {}} | more

    return [
        byte("gpt2", byte_level()),
        byte("gpt2_prefix_space", byte_level(prefix=True), post_processor=byte_level()),
        byte("roberta_like", byte_level(), post_processor={
            "type": "RobertaProcessing", "sep": ["</s>", last], "cls": ["<s>", first], "trim_offsets": True,
            "add_prefix_space": False}),
        byte("llama3", sequence(split(LLAMA3), byte_level(False)), model={"ignore_merges": True},
             post_processor={"type": "Sequence", "processors": [byte_level(), template("<s>", "$A", tokens=bos)]}),
        byte("qwen2", sequence(split(QWEN2), byte_level(False)), normalizer={"type": "NFC"}),
        byte("gpt4o", sequence(split(O200K), byte_level(False))),
        byte("smollm", sequence({"type": "Digits", "individual_digits": True}, byte_level())),
        byte("deepseek_v3", sequence(split(r"\p{N}{1,3}"), split(cjk), split(DEEPSEEK_V3), byte_level(False)),
             normalizer={"type": "Sequence", "normalizers": []},
             post_processor=template("<s>", "$A", "</s>", tokens=bos | {"</s>": last})),
        byte("deepseek_coder", sequence(split("[\r\n]"), split(r"\s?\p{L}+"), split(r"\s?\p{P}+"),
                                        split("[一-龥ࠀ-一가-퟿]+"), {"type": "Digits", "individual_digits": True},
                                        byte_level(False))),
        byte("falcon", sequence({"type": "Punctuation", "behavior": "Contiguous"}, byte_level(),
                                {"type": "Digits", "individual_digits": False}, split("[0-9][0-9][0-9]"))),
        byte("whitespace", sequence({"type": "Whitespace"}, byte_level(False))),
        byte("whitespace_split", sequence({"type": "WhitespaceSplit"}, {"type": "Punctuation"}, byte_level(False))),
        byte("behaviors", sequence(split(",", "MergedWithPrevious"), split(r"\.", "MergedWithNext"), split("-+", "Contiguous"),
                                   split("[^\\S\\n]+", "Removed"), split(r"\w+", "Isolated", True), byte_level(False))),
        byte("normalizers", byte_level(), normalizer={"type": "Sequence", "normalizers": [
            {"type": "NFKC"}, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Lowercase"},
            {"type": "Replace", "pattern": {"Regex": r"\s{2,}"}, "content": " "}]}),
        byte("strip_accents", byte_level(), normalizer={"type": "Sequence", "normalizers": [
            {"type": "NFD"}, {"type": "StripAccents"}]}),
        byte("nfkd", byte_level(), normalizer={"type": "NFKD"}),
        spm("llama2", normalizer={"type": "Sequence", "normalizers": [prepend, replace]}),
        spm("llama2_normalized_tokens", normalizer={"type": "Sequence", "normalizers": [prepend, replace]}, normalized=True),
        spm("mistral_metaspace_first", pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "first",
                                                      "split": False}),
        spm("metaspace_split", pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always",
                                              "split": True}),
        spm("metaspace_never", pre_tokenizer={"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
            decoder={"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
                                                      {"type": "ByteFallback"}, {"type": "Fuse"}]}),
    ]


def train():
    byte = Tokenizer(models.BPE())
    byte.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=1400, show_progress=False, max_token_length=16, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    spm = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True, unk_token="<unk>"))
    spm.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    specials = ["<unk>"] + [f"<0x{b:02X}>" for b in range(256)]
    spm.train_from_iterator(corpus(), trainers.BpeTrainer(
        vocab_size=1200, show_progress=False, max_token_length=12, special_tokens=specials, limit_alphabet=220))
    out = {}
    for name, tokenizer in (("byte_level", byte), ("sentencepiece", spm)):
        model = json.loads(tokenizer.to_str())["model"]
        model["merges"] = [" ".join(m) if name == "byte_level" else m for m in model["merges"]]
        out[name] = model
        (OUT / f"{name}.json").write_text(json.dumps(model, ensure_ascii=False, separators=(",", ":")) + "\n")
    return out


def fnv(ids):
    value = 0xCBF29CE484222325
    for i in ids:
        value = ((value ^ i) * 0x100000001B3) & 0xFFFFFFFFFFFFFFFF
    return f"{value:016x}"


def main():
    OUT.mkdir(exist_ok=True)
    bases = train()
    texts, bulk = TEXTS, random_texts(400)
    all_variants, vectors = [], {"texts": texts, "bulk": bulk, "variants": {}}
    for variant in variants(bases):
        all_variants.append(variant)
        content = {"version": "1.0", "truncation": None, "padding": None}
        content |= {k: v for k, v in variant.items() if k not in ("name", "base", "model")}
        content["model"] = bases[variant["base"]] | variant["model"]
        tokenizer = Tokenizer.from_str(json.dumps(content))
        for token in variant["added_tokens"]:
            assert tokenizer.token_to_id(token["content"]) == token["id"], (variant["name"], token)
        row = {"ids": [tokenizer.encode(t).ids for t in texts],
               "decoded": fnv(b"\0".join(tokenizer.decode(tokenizer.encode(t).ids, skip_special_tokens=True).encode()
                                         for t in texts)),
               "bulk": [fnv(tokenizer.encode(t).ids) for t in bulk]}
        if any(token["special"] and token["normalized"] for token in variant["added_tokens"]):
            row["decoded"] = None  # tokenizers 0.23 renames such tokens to their normalized text and shows them
        tokenizer.encode_special_tokens = True
        row["as_text"] = fnv(i for t in texts + bulk for i in tokenizer.encode(t).ids)
        vectors["variants"][variant["name"]] = row
    def dump(path, value):
        path.write_text(json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n", encoding="utf-8")
    dump(OUT / "variants.json", all_variants)
    dump(OUT / "vectors.json", vectors)
    print(len(all_variants), "variants,", len(texts), "+", len(bulk), "texts")


if __name__ == "__main__":
    main()
