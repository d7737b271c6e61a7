#include "text/tokenizer_json.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

namespace zipage {
namespace {

using nlohmann::json;

const json& child(const json& node, const char* key) {
  static const json kNull;
  const auto it = node.is_object() ? node.find(key) : node.end();
  return it == node.end() ? kNull : *it;
}

bool set_and_true(const json& node) {
  return node.is_boolean() && node.get<bool>();
}

Result<int32_t> token_id(const json& node, std::string_view token) {
  if (node.is_number_integer()) {
    const auto id = node.get<int64_t>();
    if (id >= 0 && id <= Vocabulary::kMaxId) return static_cast<int32_t>(id);
  }
  return invalid_argument(
      fmt::format("token '{}' has the id {}, which is not in [0, {}]", token, node.dump(), Vocabulary::kMaxId));
}

Status parse_vocabulary(const json& model, TokenizerParts& parts) {
  const json& vocab = child(model, "vocab");
  if (!vocab.is_object()) return invalid_argument("model.vocab is not an object");
  parts.vocabulary.reserve(vocab.size());
  for (const auto& [token, node] : vocab.items()) {
    ZIPAGE_ASSIGN_OR_RETURN(const int32_t id, token_id(node, token));
    parts.vocabulary.add(id, token);
  }
  return {};
}

Status parse_merges(const json& model, TokenizerParts& parts) {
  const json& merges = child(model, "merges");
  if (!merges.is_array()) return invalid_argument("model.merges is not a list");
  parts.merges.reserve(merges.size());
  uint32_t rank = 0;
  std::string merged;
  for (const json& merge : merges) {
    std::string_view left, right;
    if (merge.is_string()) {
      const std::string_view both = merge.get_ref<const std::string&>();
      if (both.starts_with("#version")) continue;
      const size_t space = both.find(' ');
      if (space == std::string_view::npos || both.find(' ', space + 1) != std::string_view::npos) {
        return invalid_argument(fmt::format("merge {} is '{}', which is not two tokens", rank, both));
      }
      left = both.substr(0, space);
      right = both.substr(space + 1);
    } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      left = merge[0].get_ref<const std::string&>();
      right = merge[1].get_ref<const std::string&>();
    } else {
      return invalid_argument(fmt::format("merge {} is neither a string nor a pair of strings", rank));
    }
    merged.assign(left).append(right);
    const int32_t ids[3] = {parts.vocabulary.find(left), parts.vocabulary.find(right), parts.vocabulary.find(merged)};
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0) {
      return invalid_argument(
          fmt::format("merge {} ('{}' and '{}') names a token that is not in model.vocab", rank, left, right));
    }
    parts.merges.push_back({ids[0], ids[1], ids[2], rank++});
  }
  return {};
}

Status parse_model(const json& model, TokenizerParts& parts) {
  // Files older than the "type" key are BPE when they have merges.
  const json& type = child(model, "type");
  const std::string name = type.is_string()                                ? type.get<std::string>()
                           : model.is_object() && model.contains("merges") ? "BPE"
                                                                           : "";
  if (name != "BPE") {
    return {StatusCode::kUnimplemented, fmt::format("the tokenizer model '{}' is not supported, only BPE is", name)};
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const json& affix = child(model, key);
    if (affix.is_string() && !affix.get_ref<const std::string&>().empty()) {
      return {StatusCode::kUnimplemented, fmt::format("model.{} '{}' is not supported", key, affix.get<std::string>())};
    }
  }
  if (const json& dropout = child(model, "dropout"); dropout.is_number() && dropout.get<double>() > 0) {
    return {StatusCode::kUnimplemented, "model.dropout is for training and not supported"};
  }
  ZIPAGE_RETURN_IF_ERROR(parse_vocabulary(model, parts));
  ZIPAGE_RETURN_IF_ERROR(parse_merges(model, parts));
  parts.bpe.byte_fallback = set_and_true(child(model, "byte_fallback"));
  parts.bpe.ignore_merges = set_and_true(child(model, "ignore_merges"));
  parts.bpe.fuse_unk = set_and_true(child(model, "fuse_unk"));
  if (const json& unk = child(model, "unk_token"); unk.is_string()) {
    parts.bpe.unk_id = parts.vocabulary.find(unk.get_ref<const std::string&>());
    if (parts.bpe.unk_id < 0) {
      return invalid_argument(fmt::format("model.unk_token '{}' is not in model.vocab", unk.get<std::string>()));
    }
  }
  return {};
}

Status parse_added_tokens(const json& list, TokenizerParts& parts) {
  if (list.is_null()) return {};
  if (!list.is_array()) return invalid_argument("added_tokens is not a list");
  for (const json& node : list) {
    const json& content = child(node, "content");
    if (!content.is_string()) return invalid_argument("an added token has no content");
    AddedToken token;
    token.content = content.get<std::string>();
    ZIPAGE_ASSIGN_OR_RETURN(token.id, token_id(child(node, "id"), token.content));
    token.special = set_and_true(child(node, "special"));
    token.lstrip = set_and_true(child(node, "lstrip"));
    token.rstrip = set_and_true(child(node, "rstrip"));
    token.single_word = set_and_true(child(node, "single_word"));
    token.normalized = set_and_true(child(node, "normalized"));
    parts.vocabulary.add(token.id, token.content);
    parts.added_tokens.push_back(std::move(token));
  }
  return {};
}

Result<TokenizerParts> parse_parts(const json& root) {
  if (!root.is_object()) return invalid_argument("the file is not a JSON object");
  TokenizerParts parts;
  ZIPAGE_RETURN_IF_ERROR(parse_model(child(root, "model"), parts));
  ZIPAGE_RETURN_IF_ERROR(parse_added_tokens(child(root, "added_tokens"), parts));
  ZIPAGE_ASSIGN_OR_RETURN(parts.normalizer, parse_normalizer(child(root, "normalizer")));
  ZIPAGE_ASSIGN_OR_RETURN(parts.pre_tokenizer, parse_pre_tokenizer(child(root, "pre_tokenizer")));
  ZIPAGE_RETURN_IF_ERROR(parse_post_processor(child(root, "post_processor"), parts));
  ZIPAGE_ASSIGN_OR_RETURN(parts.decoder, parse_decoder(child(root, "decoder")));
  parts.bpe.byte_level = parts.pre_tokenizer.byte_level();
  for (const std::vector<int32_t>* ids : {&parts.prefix_ids, &parts.suffix_ids}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id >= parts.vocabulary.size()) {
        return invalid_argument(fmt::format("the post-processor adds id {}, which no token has", id));
      }
    }
  }
  return parts;
}

}  // namespace

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view text, std::string_view origin) {
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (root.is_discarded()) return Status(StatusCode::kDataLoss, fmt::format("{}: not valid JSON", origin));
  auto parts = parse_parts(root);
  if (!parts.ok()) return Status(parts.status().code(), fmt::format("{}: {}", origin, parts.status().message()));
  return std::unique_ptr<Tokenizer>(std::make_unique<BpeTokenizer>(std::move(parts).value()));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return Status(StatusCode::kNotFound, fmt::format("{}: {}", path, std::strerror(errno)));
  std::ostringstream content;
  content << file.rdbuf();
  if (!file || content.view().empty()) return Status(StatusCode::kDataLoss, fmt::format("{}: cannot be read", path));
  return from_json(content.view(), path);
}

}  // namespace zipage
