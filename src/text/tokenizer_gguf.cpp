#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "load/gguf.h"
#include "text/bpe_tokenizer.h"
#include "text/gguf_pre_tokenizers.h"
#include "text/utf8.h"

namespace zipage {
namespace {

// tokenizer.ggml.token_type
constexpr int64_t kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

class GgufReader {
 public:
  explicit GgufReader(const GgufFile& file) : file_(file) {}

  Result<TokenizerParts> read() {
    ZIPAGE_RETURN_IF_ERROR(read_tokens());
    const std::string_view model = file_.get_string("tokenizer.ggml.model").value_or("");
    if (model == "gpt2") {
      ZIPAGE_RETURN_IF_ERROR(read_byte_level());
    } else if (model == "llama") {
      ZIPAGE_RETURN_IF_ERROR(read_sentencepiece());
    } else {
      return Status(StatusCode::kUnimplemented,
                    fmt::format("the tokenizer.ggml.model '{}' is not supported, only gpt2 and llama are", model));
    }
    ZIPAGE_RETURN_IF_ERROR(read_special_ids());
    return std::move(parts_);
  }

 private:
  Status read_tokens() {
    const auto tokens = file_.strings("tokenizer.ggml.tokens");
    if (!tokens) return {StatusCode::kDataLoss, "tokenizer.ggml.tokens is missing"};
    if (tokens->size() > Vocabulary::kMaxId) {
      return {StatusCode::kUnimplemented, fmt::format("a vocabulary of {} tokens is not supported", tokens->size())};
    }
    types_ = file_.ints("tokenizer.ggml.token_type").value_or(std::vector<int64_t>());
    if (!types_.empty() && types_.size() != tokens->size()) {
      return {StatusCode::kDataLoss,
              fmt::format("tokenizer.ggml.token_type has {} entries for {} tokens", types_.size(), tokens->size())};
    }
    parts_.vocabulary.reserve(tokens->size());
    for (size_t i = 0; i < tokens->size(); ++i) {
      const auto id = static_cast<int32_t>(i);
      const std::string_view text = (*tokens)[i];
      parts_.vocabulary.add(id, text);
      const int64_t type = type_of(id);
      if (type == kUnknown || type == kControl || type == kUserDefined) {
        AddedToken token;
        token.id = id;
        token.content = std::string(text);
        token.special = type != kUserDefined;
        parts_.added_tokens.push_back(std::move(token));
      }
    }
    return {};
  }

  int64_t type_of(int32_t id) const { return types_.empty() ? 1 : types_[static_cast<size_t>(id)]; }

  Status read_byte_level() {
    const std::string_view name = file_.get_string("tokenizer.ggml.pre").value_or("default");
    ZIPAGE_ASSIGN_OR_RETURN(GgufPreTokenizer pre, gguf_pre_tokenizer(name));
    parts_.normalizer = std::move(pre.normalizer);
    parts_.pre_tokenizer = std::move(pre.pre_tokenizer);
    parts_.bpe.byte_level = true;
    parts_.bpe.ignore_merges = pre.ignore_merges;
    parts_.decoder.byte_level = true;
    add_bos_ = pre.add_bos;
    const auto merges = file_.strings("tokenizer.ggml.merges");
    if (!merges) return {StatusCode::kDataLoss, "tokenizer.ggml.merges is missing"};
    parts_.merges.reserve(merges->size());
    std::string merged;
    for (size_t i = 0; i < merges->size(); ++i) {
      const std::string_view both = (*merges)[i];
      const size_t space = both.find(' ', 1);  // a token may begin with a space, but never has one inside
      if (space == std::string_view::npos) {
        return {StatusCode::kDataLoss,
                fmt::format("tokenizer.ggml.merges[{}] is '{}', which is not two tokens", i, both)};
      }
      const std::string_view left = both.substr(0, space), right = both.substr(space + 1);
      merged.assign(left).append(right);
      const int32_t ids[3] = {parts_.vocabulary.find(left), parts_.vocabulary.find(right),
                              parts_.vocabulary.find(merged)};
      if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
        return {StatusCode::kDataLoss,
                fmt::format("tokenizer.ggml.merges[{}] names a token that is not in the vocabulary", i)};
      }
      parts_.merges.push_back({ids[0], ids[1], ids[2], static_cast<uint32_t>(i)});
    }
    return {};
  }

  // SentencePiece joins the two neighbours whose joined piece has the best score: every split of a piece into two
  // pieces is a merge, ranked by the piece's score.
  Status read_sentencepiece() {
    const auto scores = file_.floats("tokenizer.ggml.scores");
    const auto num_tokens = static_cast<size_t>(parts_.vocabulary.size());
    if (!scores || scores->size() != num_tokens) {
      return {StatusCode::kDataLoss, fmt::format("tokenizer.ggml.scores has {} entries for {} tokens",
                                                 scores ? scores->size() : 0, num_tokens)};
    }
    if (!std::all_of(scores->begin(), scores->end(), [](float score) { return std::isfinite(score); })) {
      return {StatusCode::kDataLoss, "tokenizer.ggml.scores has a score that is not finite"};
    }
    std::map<float, uint32_t, std::greater<>> ranks;
    for (const float score : *scores) ranks.emplace(score, 0);
    uint32_t next = 0;
    for (auto& [score, rank] : ranks) rank = next++;

    const auto joins = [&](int32_t id) {
      return id >= 0 && type_of(id) != kUnknown && type_of(id) != kControl && type_of(id) != kUnused &&
             type_of(id) != kByte;
    };
    for (int32_t id = 0; id < parts_.vocabulary.size(); ++id) {
      const std::string_view piece = parts_.vocabulary.text(id);
      if (!joins(id) || parts_.vocabulary.find(piece) != id || piece.size() > kMaxPiece) continue;
      const uint32_t rank = ranks.at((*scores)[static_cast<size_t>(id)]);
      for (size_t at = next_utf8_unit(piece).size; at < piece.size(); at += next_utf8_unit(piece.substr(at)).size) {
        const int32_t left = parts_.vocabulary.find(piece.substr(0, at)),
                      right = parts_.vocabulary.find(piece.substr(at));
        if (joins(left) && joins(right)) parts_.merges.push_back({left, right, id, rank});
      }
    }
    parts_.bpe.byte_fallback = true;
    parts_.bpe.fuse_unk = true;
    parts_.bpe.unk_id = static_cast<int32_t>(file_.get_int("tokenizer.ggml.unknown_token_id").value_or(-1));
    if (parts_.bpe.unk_id < -1 || parts_.bpe.unk_id >= parts_.vocabulary.size()) {
      return {StatusCode::kDataLoss, fmt::format("tokenizer.ggml.unknown_token_id is {}", parts_.bpe.unk_id)};
    }
    const bool prefix = file_.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
    std::vector<normalizers::Step> steps;
    if (prefix) steps.emplace_back(normalizers::Prepend{kSpace});
    steps.emplace_back(normalizers::Replace{Regex::literal(" "), kSpace});
    parts_.normalizer = Normalizer(std::move(steps));
    parts_.decoder.replace.emplace_back(kSpace, " ");
    parts_.decoder.byte_fallback = true;
    parts_.decoder.strip_leading_space = prefix;
    add_bos_ = true;
    return {};
  }

  Status read_special_ids() {
    const auto add = [&](const char* flag, bool otherwise, const char* key, std::vector<int32_t>& ids) -> Status {
      if (!file_.get_bool(flag).value_or(otherwise)) return {};
      const auto id = file_.get_int(key);
      if (!id) return {};
      if (*id < 0 || *id >= parts_.vocabulary.size()) {
        return {StatusCode::kDataLoss,
                fmt::format("{} is {}, but the vocabulary has {} tokens", key, *id, parts_.vocabulary.size())};
      }
      ids.push_back(static_cast<int32_t>(*id));
      return {};
    };
    ZIPAGE_RETURN_IF_ERROR(
        add("tokenizer.ggml.add_bos_token", add_bos_, "tokenizer.ggml.bos_token_id", parts_.prefix_ids));
    return add("tokenizer.ggml.add_eos_token", false, "tokenizer.ggml.eos_token_id", parts_.suffix_ids);
  }

  static constexpr const char* kSpace = "\u2581";
  static constexpr size_t kMaxPiece = 1024;  // bytes; the splits of a piece cost its length squared

  const GgufFile& file_;
  TokenizerParts parts_;
  std::vector<int64_t> types_;
  bool add_bos_ = false;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_gguf(const GgufFile& file) {
  auto parts = GgufReader(file).read();
  if (!parts.ok()) return Status(parts.status().code(), fmt::format("{}: {}", file.path(), parts.status().message()));
  return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(parts).value()));
}

}  // namespace zipage
