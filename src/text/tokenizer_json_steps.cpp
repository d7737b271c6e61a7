#include <fmt/format.h>

#include "text/tokenizer_json.h"

namespace zipage {

const char* const kGpt2Pattern = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

namespace {

using nlohmann::json;

Status unsupported(std::string_view what, std::string_view type) {
  return {StatusCode::kUnimplemented, fmt::format("the {} '{}' is not supported", what, type)};
}

std::string type_of(const json& node) {
  const auto it = node.is_object() ? node.find("type") : node.end();
  return it != node.end() && it->is_string() ? it->get<std::string>() : std::string();
}

bool flag(const json& node, const char* key, bool otherwise) {
  const auto it = node.find(key);
  return it != node.end() && it->is_boolean() ? it->get<bool>() : otherwise;
}

std::string text(const json& node, const char* key, std::string otherwise = {}) {
  const auto it = node.find(key);
  return it != node.end() && it->is_string() ? it->get<std::string>() : otherwise;
}

// The steps of a Sequence, or the one step. `list` is the key of a Sequence's steps.
Result<std::vector<const json*>> flatten(const json& node, const char* list, int depth = 0) {
  if (node.is_null()) return std::vector<const json*>{};
  if (type_of(node) != "Sequence") return std::vector<const json*>{&node};
  if (depth > 8) return invalid_argument(fmt::format("'{}' is nested too deeply", list));
  const auto it = node.find(list);
  if (it == node.end() || !it->is_array()) return invalid_argument(fmt::format("a Sequence lacks its list '{}'", list));
  std::vector<const json*> steps;
  for (const json& step : *it) {
    ZIPAGE_ASSIGN_OR_RETURN(const auto inner, flatten(step, list, depth + 1));
    steps.insert(steps.end(), inner.begin(), inner.end());
  }
  return steps;
}

Result<std::shared_ptr<const Regex>> parse_pattern(const json& node) {
  const auto it = node.find("pattern");
  if (it != node.end() && it->is_object()) {
    if (const auto found = it->find("String"); found != it->end() && found->is_string()) {
      return Regex::literal(found->get<std::string>());
    }
    if (const auto found = it->find("Regex"); found != it->end() && found->is_string()) {
      return Regex::compile(found->get<std::string>());
    }
  }
  return invalid_argument(fmt::format("a {} step lacks its pattern", type_of(node)));
}

Result<pre_tokenizers::Behavior> parse_behavior(const json& node, std::string_view otherwise) {
  using pre_tokenizers::Behavior;
  const std::string name = text(node, "behavior", std::string(otherwise));
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return unsupported("splitting behavior", name);
}

Result<normalizers::Step> parse_normalizer_step(const json& node) {
  const std::string type = type_of(node);
  if (type == "NFC") return normalizers::Step(normalizers::Form{NormalForm::kNfc});
  if (type == "NFD") return normalizers::Step(normalizers::Form{NormalForm::kNfd});
  if (type == "NFKC") return normalizers::Step(normalizers::Form{NormalForm::kNfkc});
  if (type == "NFKD") return normalizers::Step(normalizers::Form{NormalForm::kNfkd});
  if (type == "Lowercase") return normalizers::Step(normalizers::Lowercase{});
  if (type == "StripAccents") return normalizers::Step(normalizers::StripAccents{});
  if (type == "Strip") {
    return normalizers::Step(normalizers::Strip{flag(node, "strip_left", true), flag(node, "strip_right", true)});
  }
  if (type == "Prepend") return normalizers::Step(normalizers::Prepend{text(node, "prepend")});
  if (type == "Replace") {
    ZIPAGE_ASSIGN_OR_RETURN(auto pattern, parse_pattern(node));
    return normalizers::Step(normalizers::Replace{std::move(pattern), text(node, "content")});
  }
  return unsupported("normalizer", type);
}

Result<pre_tokenizers::Step> parse_pre_tokenizer_step(const json& node) {
  const std::string type = type_of(node);
  if (type == "Split") {
    ZIPAGE_ASSIGN_OR_RETURN(auto pattern, parse_pattern(node));
    ZIPAGE_ASSIGN_OR_RETURN(const auto behavior, parse_behavior(node, ""));
    return pre_tokenizers::Step(pre_tokenizers::Split{std::move(pattern), behavior, flag(node, "invert", false)});
  }
  if (type == "Digits") return pre_tokenizers::Step(pre_tokenizers::Digits{flag(node, "individual_digits", false)});
  if (type == "Punctuation") {
    ZIPAGE_ASSIGN_OR_RETURN(const auto behavior, parse_behavior(node, "Isolated"));
    return pre_tokenizers::Step(pre_tokenizers::Punctuation{behavior});
  }
  if (type == "Whitespace") return pre_tokenizers::Step(pre_tokenizers::Whitespace{});
  if (type == "WhitespaceSplit") return pre_tokenizers::Step(pre_tokenizers::WhitespaceSplit{});
  if (type == "ByteLevel") {
    pre_tokenizers::ByteLevel step{nullptr, flag(node, "add_prefix_space", true)};
    if (flag(node, "use_regex", true)) {
      ZIPAGE_ASSIGN_OR_RETURN(step.pattern, Regex::compile(kGpt2Pattern));
    }
    return pre_tokenizers::Step(std::move(step));
  }
  if (type == "Metaspace") {
    pre_tokenizers::Metaspace step;
    step.replacement = text(node, "replacement", step.replacement);
    step.split = flag(node, "split", true);
    const std::string scheme = text(node, "prepend_scheme", flag(node, "add_prefix_space", true) ? "always" : "never");
    using Prepend = pre_tokenizers::Metaspace::Prepend;
    if (scheme != "always" && scheme != "first" && scheme != "never") return unsupported("prepend scheme", scheme);
    step.prepend = scheme == "always" ? Prepend::kAlways : scheme == "first" ? Prepend::kFirst : Prepend::kNever;
    return pre_tokenizers::Step(std::move(step));
  }
  return unsupported("pre-tokenizer", type);
}

// The ids of a special token that a template names.
Status append_special(const json& processor, const std::string& name, std::vector<int32_t>& ids) {
  const auto table = processor.find("special_tokens");
  if (table != processor.end() && table->is_object() && table->contains(name)) {
    const json& list = (*table)[name].is_object() ? (*table)[name].value("ids", json()) : json();
    for (const json& id : list) {
      if (!id.is_number_integer()) return invalid_argument(fmt::format("the template's token '{}' has no ids", name));
      ids.push_back(id.get<int32_t>());
    }
    return {};
  }
  return invalid_argument(fmt::format("the template names '{}', which its special_tokens lack", name));
}

Status parse_template(const json& node, TokenizerParts& parts) {
  std::vector<int32_t> before, after;
  bool seen_text = false;
  const auto pieces = node.find("single");
  if (pieces == node.end() || !pieces->is_array())
    return invalid_argument("a TemplateProcessing lacks its list 'single'");
  for (const json& piece : *pieces) {
    if (piece.is_object() && piece.contains("Sequence")) {
      if (seen_text) return unsupported("template", "with its text twice");
      seen_text = true;
    } else if (piece.is_object() && piece.contains("SpecialToken") && piece["SpecialToken"].is_object()) {
      ZIPAGE_RETURN_IF_ERROR(append_special(node, text(piece["SpecialToken"], "id"), seen_text ? after : before));
    } else {
      return invalid_argument("a TemplateProcessing has a piece that is neither Sequence nor SpecialToken");
    }
  }
  if (!seen_text) return unsupported("template", "without its text");
  parts.prefix_ids.insert(parts.prefix_ids.begin(), before.begin(), before.end());
  parts.suffix_ids.insert(parts.suffix_ids.end(), after.begin(), after.end());
  return {};
}

// ["</s>", 2] of Bert's and Roberta's processors.
Status parse_pair(const json& node, const char* key, int32_t& id) {
  const auto it = node.find(key);
  if (it == node.end() || !it->is_array() || it->size() != 2 || !(*it)[1].is_number_integer()) {
    return invalid_argument(fmt::format("a {} lacks its pair '{}'", type_of(node), key));
  }
  id = (*it)[1].get<int32_t>();
  return {};
}

}  // namespace

Result<Normalizer> parse_normalizer(const json& node) {
  ZIPAGE_ASSIGN_OR_RETURN(const auto nodes, flatten(node, "normalizers"));
  std::vector<normalizers::Step> steps;
  for (const json* step : nodes) {
    ZIPAGE_ASSIGN_OR_RETURN(steps.emplace_back(), parse_normalizer_step(*step));
  }
  return Normalizer(std::move(steps));
}

Result<PreTokenizer> parse_pre_tokenizer(const json& node) {
  ZIPAGE_ASSIGN_OR_RETURN(const auto nodes, flatten(node, "pretokenizers"));
  std::vector<pre_tokenizers::Step> steps;
  for (const json* step : nodes) {
    ZIPAGE_ASSIGN_OR_RETURN(steps.emplace_back(), parse_pre_tokenizer_step(*step));
  }
  return PreTokenizer(std::move(steps));
}

Status parse_post_processor(const json& node, TokenizerParts& parts) {
  ZIPAGE_ASSIGN_OR_RETURN(const auto nodes, flatten(node, "processors"));
  for (const json* step : nodes) {
    const std::string type = type_of(*step);
    if (type == "ByteLevel") continue;  // moves offsets only
    if (type == "TemplateProcessing") {
      ZIPAGE_RETURN_IF_ERROR(parse_template(*step, parts));
    } else if (type == "BertProcessing" || type == "RobertaProcessing") {
      int32_t sep = 0, cls = 0;
      ZIPAGE_RETURN_IF_ERROR(parse_pair(*step, "sep", sep));
      ZIPAGE_RETURN_IF_ERROR(parse_pair(*step, "cls", cls));
      parts.prefix_ids.insert(parts.prefix_ids.begin(), cls);
      parts.suffix_ids.push_back(sep);
    } else {
      return unsupported("post-processor", type);
    }
  }
  return {};
}

Result<TokenDecoder> parse_decoder(const json& node) {
  ZIPAGE_ASSIGN_OR_RETURN(const auto nodes, flatten(node, "decoders"));
  TokenDecoder decoder;
  bool fused = false;
  for (const json* step : nodes) {
    const std::string type = type_of(*step);
    if (type == "ByteLevel") {
      decoder.byte_level = true;
    } else if (type == "ByteFallback") {
      decoder.byte_fallback = true;
    } else if (type == "Fuse") {
      fused = true;
    } else if (type == "Metaspace") {
      decoder.replace.emplace_back(text(*step, "replacement", "\u2581"), " ");
      decoder.strip_leading_space =
          text(*step, "prepend_scheme", flag(*step, "add_prefix_space", true) ? "always" : "never") != "never";
    } else if (type == "Replace" && !decoder.byte_fallback) {
      const auto pattern = step->find("pattern");
      if (pattern == step->end() || !pattern->is_object() || text(*pattern, "String").empty()) {
        return unsupported("decoder", "Replace with an expression");
      }
      decoder.replace.emplace_back(text(*pattern, "String"), text(*step, "content"));
    } else if (type == "Strip" && fused && text(*step, "content") == " " && step->value("start", 0) == 1 &&
               step->value("stop", 0) == 0) {
      decoder.strip_leading_space = true;
    } else {
      return unsupported("decoder", type);
    }
  }
  if (decoder.byte_level && (decoder.byte_fallback || !decoder.replace.empty())) {
    return unsupported("decoder", "ByteLevel together with others");
  }
  return decoder;
}

}  // namespace zipage
