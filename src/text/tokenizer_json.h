// The parts of a tokenizer.json beyond the model: its steps by their "type".
//
// Thread-safety: pure functions. Internal to src/text: this header includes the JSON library.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "text/bpe_tokenizer.h"

namespace zipage {

// GPT-2's expression for words, which ByteLevel uses unless told otherwise.
extern const char* const kGpt2Pattern;

// Each takes the value of its key, which may be null. Errors name what is not supported; the caller adds the file.
Result<Normalizer> parse_normalizer(const nlohmann::json& node);
Result<PreTokenizer> parse_pre_tokenizer(const nlohmann::json& node);
Status parse_post_processor(const nlohmann::json& node, TokenizerParts& parts);
Result<TokenDecoder> parse_decoder(const nlohmann::json& node);

}  // namespace zipage
