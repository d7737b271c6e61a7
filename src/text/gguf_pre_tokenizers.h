// Pre-tokenizers that GGUF files name instead of spelling them out (tokenizer.ggml.pre).
//
// Thread-safety: pure functions.
#pragma once

#include <string_view>

#include "text/normalizer.h"
#include "text/pre_tokenizer.h"
#include "zipage/status.h"

namespace zipage {

struct GgufPreTokenizer {
  Normalizer normalizer;
  PreTokenizer pre_tokenizer;
  bool ignore_merges = false;
  bool add_bos = false;  // where the file does not say
};
// kUnimplemented for a name that is not known.
Result<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view name);

}  // namespace zipage
