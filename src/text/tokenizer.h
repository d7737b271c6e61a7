// Text to token ids and back, as the model's tokenizer files say. Ids equal Hugging Face `tokenizers`'.
//
// Thread-safety: immutable after loading; all methods are const and may run concurrently.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_range.h"
#include "zipage/status.h"

namespace zipage {

class GgufFile;

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool lstrip = false, rstrip = false, single_word = false, normalized = false;
};

enum class SpecialTokens : uint8_t {
  kParse,   // added tokens in the text become their ids (template text)
  kAsText,  // the text of a control token stays text (what a user wrote)
};

class Tokenizer {
 public:
  // tokenizer.json, or a file with the same content. Errors name the file and the key.
  static Result<std::unique_ptr<Tokenizer>> from_json_file(const std::string& path);
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view json, std::string_view origin);
  // The vocabulary in a GGUF file's metadata (gpt2 and llama models).
  static Result<std::unique_ptr<Tokenizer>> from_gguf(const GgufFile& file);
  virtual ~Tokenizer() = default;

  // add_special_tokens: what the post-processor adds (BOS, EOS). `text` may be any bytes; invalid UTF-8 is replaced
  // by U+FFFD first.
  virtual std::vector<int32_t> encode(std::string_view text, bool add_special_tokens,
                                      SpecialTokens specials = SpecialTokens::kParse) const = 0;
  // encode() of a text of which only some parts were written by someone who may write control tokens: within the
  // ranges of `literal` (in order, apart) the text of a control token stays text. No special tokens are added.
  virtual std::vector<int32_t> encode_mixed(std::string_view text, std::span<const ByteRange> literal) const = 0;
  // The bytes one token stands for, in the middle of a text. Unknown ids: "".
  virtual std::string_view token_bytes(int32_t id) const = 0;
  // The token as its vocabulary spells it ("Ġhello", "▁hello", "<0xE4>").
  virtual std::string_view token_text(int32_t id) const = 0;
  virtual int32_t token_id(std::string_view token_text) const = 0;  // -1 when unknown
  virtual const AddedToken* added_token(int32_t id) const = 0;      // null for ordinary tokens
  virtual int vocab_size() const = 0;                               // ids are [0, vocab_size)
  // SentencePiece decoders drop the space that encoding put before the first word.
  virtual bool strips_leading_space() const = 0;
  virtual std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const = 0;
};

}  // namespace zipage
