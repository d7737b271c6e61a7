#include "text/gguf_pre_tokenizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "text/tokenizer_json.h"

namespace zipage {
namespace {

// The expressions of the models' own tokenizer.json files.
constexpr const char* kLlama3 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kQwen2 =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kO200k =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekken = R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
                                R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
                                R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekV3Words =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kDeepSeekLlmLetters =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ)"
    R"(-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ίῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-)"
    R"(ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr const char* kCjk = R"([一-龥ࠀ-一가-퟿]+)";

enum class Digits : uint8_t { kNone, kRuns, kIndividual };

struct Recipe {
  std::vector<std::string_view> names;
  Digits digits_first = Digits::kNone;
  std::vector<const char*> splits;  // each isolates its matches
  Digits digits_last = Digits::kNone;
  bool gpt2_words = false;  // ByteLevel's own expression
  bool nfc = false;
  bool ignore_merges = false;
  bool add_bos = false;
};

const std::vector<Recipe>& recipes() {
  static const std::vector<Recipe> kRecipes = {
      {.names = {"gpt-2", "phi-2", "olmo", "jais", "exaone4", "mellum", "trillion"}, .gpt2_words = true},
      {.names = {"smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"},
       .digits_first = Digits::kIndividual,
       .gpt2_words = true},
      {.names = {"llama-bpe", "llama3", "llama-v3", "falcon3", "lfm2"},
       .splits = {kLlama3},
       .ignore_merges = true,
       .add_bos = true},
      {.names = {"dbrx", "smaug-bpe"}, .splits = {kLlama3}},
      {.names = {"qwen2", "deepseek-r1-qwen"}, .splits = {kQwen2}, .nfc = true},
      {.names = {"gpt-4o", "llama4"}, .splits = {kO200k}},
      {.names = {"tekken"}, .splits = {kTekken}, .ignore_merges = true, .add_bos = true},
      {.names = {"deepseek-llm"},
       .splits = {R"([\r\n])", kDeepSeekLlmLetters, R"(\s?[!-/:-~！-／：-～‘-‟　-。]+)", R"(\s+$)", kCjk},
       .digits_last = Digits::kIndividual},
      {.names = {"deepseek-coder"},
       .splits = {R"([\r\n])", R"(\s?\p{L}+)", R"(\s?\p{P}+)", kCjk},
       .digits_last = Digits::kIndividual},
      {.names = {"deepseek-v3"}, .splits = {R"(\p{N}{1,3})", R"([一-龥぀-ゟ゠-ヿ]+)", kDeepSeekV3Words}},
  };
  return kRecipes;
}

void add_digits(Digits digits, std::vector<pre_tokenizers::Step>& steps) {
  if (digits != Digits::kNone) steps.emplace_back(pre_tokenizers::Digits{digits == Digits::kIndividual});
}

Result<std::vector<pre_tokenizers::Step>> falcon_steps() {
  std::vector<pre_tokenizers::Step> steps;
  steps.emplace_back(pre_tokenizers::Punctuation{pre_tokenizers::Behavior::kContiguous});
  pre_tokenizers::ByteLevel bytes;
  ZIPAGE_ASSIGN_OR_RETURN(bytes.pattern, Regex::compile(kGpt2Pattern));
  steps.emplace_back(std::move(bytes));
  add_digits(Digits::kRuns, steps);
  pre_tokenizers::Split threes;
  ZIPAGE_ASSIGN_OR_RETURN(threes.pattern, Regex::compile("[0-9][0-9][0-9]"));
  steps.emplace_back(std::move(threes));
  return steps;
}

Result<std::vector<pre_tokenizers::Step>> steps_of(const Recipe& recipe) {
  std::vector<pre_tokenizers::Step> steps;
  add_digits(recipe.digits_first, steps);
  for (const char* pattern : recipe.splits) {
    pre_tokenizers::Split split;
    ZIPAGE_ASSIGN_OR_RETURN(split.pattern, Regex::compile(pattern));
    steps.emplace_back(std::move(split));
  }
  add_digits(recipe.digits_last, steps);
  pre_tokenizers::ByteLevel bytes;
  if (recipe.gpt2_words) {
    ZIPAGE_ASSIGN_OR_RETURN(bytes.pattern, Regex::compile(kGpt2Pattern));
  }
  steps.emplace_back(std::move(bytes));
  return steps;
}

}  // namespace

Result<GgufPreTokenizer> gguf_pre_tokenizer(std::string_view name) {
  GgufPreTokenizer out;
  if (name == "falcon") {
    ZIPAGE_ASSIGN_OR_RETURN(auto steps, falcon_steps());
    out.pre_tokenizer = PreTokenizer(std::move(steps));
    return out;
  }
  for (const Recipe& recipe : recipes()) {
    if (std::find(recipe.names.begin(), recipe.names.end(), name) == recipe.names.end()) continue;
    ZIPAGE_ASSIGN_OR_RETURN(auto steps, steps_of(recipe));
    out.pre_tokenizer = PreTokenizer(std::move(steps));
    if (recipe.nfc) out.normalizer = Normalizer({normalizers::Form{NormalForm::kNfc}});
    out.ignore_merges = recipe.ignore_merges;
    out.add_bos = recipe.add_bos;
    return out;
  }
  return Status(
      StatusCode::kUnimplemented,
      fmt::format("the pre-tokenizer '{}' is not supported; name the model's tokenizer.json with --tokenizer", name));
}

}  // namespace zipage
