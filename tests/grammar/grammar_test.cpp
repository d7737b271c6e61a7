#include "grammar/grammar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <regex>
#include <set>
#include <thread>

#include "load/gguf.h"
#include "text/grammar_vocabulary.h"
#include "text/tokenizer.h"

namespace zipage {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using Kind = StructuredOutput::Kind;

// A real vocabulary with a compiler for it.
class Vocabulary {
 public:
  explicit Vocabulary(std::unique_ptr<Tokenizer> tokenizer, int32_t eos)
      : tokenizer_(std::move(tokenizer)), vocab_(tokenizer_->vocab_size() + 7), eos_(eos), compiler_([this] {
          const int32_t ids[] = {eos_};
          return grammar_vocabulary(*tokenizer_, vocab_, ids);
        }) {}

  static Vocabulary& reasoner() {
    static Vocabulary vocabulary(
        std::move(Tokenizer::from_json_file(std::string(ZIPAGE_SOURCE_DIR) + "/models/reasoner/model/tokenizer.json"))
            .value(),
        611);
    return vocabulary;
  }
  static Vocabulary& smollm2() {
    static const std::unique_ptr<GgufFile> file = std::move(GgufFile::open(ZIPAGE_SMOLLM2_GGUF)).value();
    static Vocabulary vocabulary(std::move(Tokenizer::from_gguf(*file)).value(), 2);
    return vocabulary;
  }

  GrammarCompiler& compiler() { return compiler_; }
  const Tokenizer& tokenizer() const { return *tokenizer_; }
  int vocab() const { return vocab_; }
  int32_t eos() const { return eos_; }

  std::shared_ptr<TokenConstraint> constraint(const StructuredOutput& what, ThoughtGate gate = {}) {
    auto grammar = compiler_.compile(what);
    EXPECT_TRUE(grammar.ok()) << what.source << ": " << grammar.status().message();
    return grammar.ok() ? (*grammar)->constraint(std::move(gate), {}) : nullptr;
  }

 private:
  std::unique_ptr<Tokenizer> tokenizer_;
  int vocab_;
  int32_t eos_;
  GrammarCompiler compiler_;
};

std::vector<int32_t> allowed(TokenConstraint& constraint, int vocab) {
  std::vector<uint32_t> mask(static_cast<size_t>(vocab + 31) / 32, 0);
  std::vector<int32_t> ids;
  if (!constraint.fill_mask(mask.data(), vocab)) {
    for (int32_t id = 0; id < vocab; ++id) ids.push_back(id);
    return ids;
  }
  for (size_t word = 0; word < mask.size(); ++word) {
    for (uint32_t bits = mask[word]; bits != 0; bits &= bits - 1) {
      ids.push_back(static_cast<int32_t>(word * 32) + std::countr_zero(bits));
    }
  }
  EXPECT_TRUE(ids.empty() || ids.back() < vocab);
  return ids;
}

bool allows(TokenConstraint& constraint, int vocab, int32_t id) {
  const std::vector<int32_t> ids = allowed(constraint, vocab);
  return std::ranges::binary_search(ids, id);
}

// A model that knows nothing writes allowed tokens until the answer ends; it prefers to end.
std::string random_answer(Vocabulary& vocabulary, TokenConstraint& constraint, std::mt19937_64& random) {
  std::string text;
  for (int step = 0; step < 2000; ++step) {
    const std::vector<int32_t> ids = allowed(constraint, vocabulary.vocab());
    EXPECT_FALSE(ids.empty()) << "stuck after: " << text;
    if (ids.empty()) return text;
    const bool may_end = std::ranges::binary_search(ids, vocabulary.eos());
    if (may_end && random() % 2 == 0) {
      constraint.accept(vocabulary.eos());
      EXPECT_TRUE(constraint.finished());
      return text;
    }
    const int32_t id = ids[random() % ids.size()];
    if (id == vocabulary.eos()) continue;
    constraint.accept(id);
    text += vocabulary.tokenizer().token_bytes(id);
  }
  ADD_FAILURE() << "no end after: " << text;
  return text;
}

const char* const kPerson = R"({
  "type": "object",
  "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                 "tags": {"type": "array", "items": {"enum": ["a", "é", "世界"]}, "maxItems": 2},
                 "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/leaf"}]}},
  "required": ["name", "age", "tags", "next"], "additionalProperties": false,
  "$defs": {"leaf": {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"],
            "additionalProperties": false}}})";

void expect_person(const std::string& text) {
  const json person = json::parse(text, nullptr, false);
  ASSERT_FALSE(person.is_discarded()) << text;
  EXPECT_EQ(person.size(), 4U) << text;
  EXPECT_TRUE(person["name"].is_string());
  EXPECT_TRUE(person["age"].is_number_integer() && person["age"] >= 0 && person["age"] <= 150) << text;
  const std::set<std::string> tags = {"a", "é", "世界"};
  for (const json& tag : person["tags"]) EXPECT_TRUE(tags.contains(tag)) << text;
  EXPECT_LE(person["tags"].size(), 2U);
  EXPECT_TRUE(person["next"].is_null() || person["next"]["ok"].is_boolean()) << text;
}

TEST(Grammar, AnswersOfAnIgnorantModelMatchTheSchema) {
  for (Vocabulary* vocabulary : {&Vocabulary::reasoner(), &Vocabulary::smollm2()}) {
    std::mt19937_64 random(7);
    for (int i = 0; i < 20; ++i) {
      const auto constraint = vocabulary->constraint({Kind::kJsonSchema, kPerson, false});
      expect_person(random_answer(*vocabulary, *constraint, random));
    }
  }
}

TEST(Grammar, ChoicesRegexAndGrammarAreKeptTo) {
  for (Vocabulary* vocabulary : {&Vocabulary::reasoner(), &Vocabulary::smollm2()}) {
    std::mt19937_64 random(3);
    const std::set<std::string> choices = {"yes", "no \"quoted\" \\ back", "日本\n", "a\x01z"};
    const std::regex date("[0-9]{4}-[01][0-9](T[a-c]+)?");
    for (int i = 0; i < 20; ++i) {
      const auto choice = vocabulary->constraint({Kind::kChoice, json(choices).dump()});
      EXPECT_TRUE(choices.contains(random_answer(*vocabulary, *choice, random)));
      const auto regex = vocabulary->constraint({Kind::kRegex, "[0-9]{4}-[01][0-9](T[a-c]+)?"});
      const std::string text = random_answer(*vocabulary, *regex, random);
      EXPECT_TRUE(std::regex_match(text, date)) << text;
      const auto sum = vocabulary->constraint({Kind::kGrammar, "root ::= term (\"+\" term)*\nterm ::= [0-9] | \"x\""});
      const std::string terms = random_answer(*vocabulary, *sum, random);
      EXPECT_TRUE(std::regex_match(terms, std::regex("[0-9x](\\+[0-9x])*"))) << terms;
    }
  }
}

TEST(Grammar, AnyJsonObjectIsAnObject) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const auto constraint = vocabulary.constraint({Kind::kJsonObject, ""});
  for (const char* text : {"{\"a\": [1, {\"b\": null}], ", "\"c\": \"\\u00e9\"}"}) {
    for (const int32_t id : vocabulary.tokenizer().encode(text, false)) {
      ASSERT_TRUE(allows(*constraint, vocabulary.vocab(), id)) << text;
      EXPECT_FALSE(allows(*constraint, vocabulary.vocab(), vocabulary.eos()));
      constraint->accept(id);
    }
  }
  EXPECT_TRUE(allows(*constraint, vocabulary.vocab(), vocabulary.eos()));
  EXPECT_TRUE(vocabulary.constraint({Kind::kJsonObject, ""}) != nullptr);
  const auto list = vocabulary.constraint({Kind::kJsonObject, ""});
  EXPECT_FALSE(allows(*list, vocabulary.vocab(), vocabulary.tokenizer().encode("[", false).front()));
}

TEST(Grammar, ControlTokensAndPaddingRowsAreNeverPartOfAnAnswer) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const auto constraint = vocabulary.constraint({Kind::kRegex, "(.|\\n)*"});
  const std::vector<int32_t> ids = allowed(*constraint, vocabulary.vocab());
  for (const int32_t control : {609, 610}) EXPECT_FALSE(std::ranges::binary_search(ids, control));
  EXPECT_TRUE(std::ranges::binary_search(ids, 611));
  EXPECT_LT(ids.back(), vocabulary.tokenizer().vocab_size());
}

TEST(Grammar, FinishedMeansThatOnlyAStopTokenMayFollow) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const auto open = vocabulary.constraint({Kind::kRegex, "a+"});
  const int32_t a = vocabulary.tokenizer().encode("a", false).front();
  EXPECT_FALSE(open->finished());
  open->accept(a);
  EXPECT_FALSE(open->finished());  // more may follow
  const auto closed = vocabulary.constraint({Kind::kChoice, "[\"a\"]"});
  closed->accept(a);
  EXPECT_TRUE(closed->finished());
  EXPECT_EQ(allowed(*closed, vocabulary.vocab()), std::vector<int32_t>{vocabulary.eos()});
  closed->accept(vocabulary.eos());
  EXPECT_TRUE(closed->finished());
  EXPECT_TRUE(allowed(*closed, vocabulary.vocab()).empty());
  EXPECT_TRUE(closed->error().ok());
}

TEST(Grammar, ATokenThatWasForcedAgainstTheGrammarEndsInAnError) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const auto constraint = vocabulary.constraint({Kind::kChoice, "[\"a\"]"});
  constraint->accept(vocabulary.tokenizer().encode("b", false).front());
  EXPECT_TRUE(allowed(*constraint, vocabulary.vocab()).empty());
  EXPECT_FALSE(constraint->finished());
  EXPECT_THAT(constraint->error().message(), HasSubstr("not one that the grammar allows"));
}

TEST(Grammar, StartsAfterTheThought) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const int32_t begin = vocabulary.tokenizer().token_id("<think>"), end = vocabulary.tokenizer().token_id("</think>");
  const int32_t x = vocabulary.tokenizer().encode("x", false).front();
  const int32_t a = vocabulary.tokenizer().encode("a", false).front();
  for (const auto start : {ThoughtGate::Start::kThought, ThoughtGate::Start::kEither}) {
    const auto constraint = vocabulary.constraint({Kind::kChoice, "[\"a\"]"}, {start, {begin}, {end}});
    if (start == ThoughtGate::Start::kEither) {
      EXPECT_EQ(allowed(*constraint, vocabulary.vocab()), (std::vector<int32_t>{a, begin}));
      constraint->accept(begin);
    }
    for (int i = 0; i < 3; ++i) {
      EXPECT_TRUE(allows(*constraint, vocabulary.vocab(), x));
      EXPECT_FALSE(allows(*constraint, vocabulary.vocab(), vocabulary.eos()));
      EXPECT_FALSE(constraint->finished());
      constraint->accept(x);
    }
    constraint->accept(end);
    EXPECT_EQ(allowed(*constraint, vocabulary.vocab()), std::vector<int32_t>{a});
    constraint->accept(a);
    EXPECT_TRUE(constraint->finished());
  }
  const auto without = vocabulary.constraint({Kind::kChoice, "[\"a\"]"}, {ThoughtGate::Start::kEither, {begin}, {end}});
  without->accept(a);
  EXPECT_TRUE(without->finished());
}

TEST(Grammar, TagsOfSeveralTokensOpenAndCloseTheThought) {
  Vocabulary& vocabulary = Vocabulary::smollm2();
  const ReasoningFormat format;
  const std::vector<int32_t> prompt = vocabulary.tokenizer().encode("hello", false);
  const ThoughtGate gate = thought_gate(format, vocabulary.tokenizer(), prompt);
  ASSERT_GT(gate.begin.size(), 1U);
  ASSERT_GT(gate.end.size(), 1U);
  const auto constraint = vocabulary.constraint({Kind::kChoice, "[\"a\"]"}, gate);
  for (const int32_t id : gate.begin) {
    EXPECT_TRUE(allows(*constraint, vocabulary.vocab(), id));
    constraint->accept(id);
  }
  EXPECT_GT(allowed(*constraint, vocabulary.vocab()).size(), 1000U);
  for (const int32_t id : gate.end) constraint->accept(id);
  EXPECT_LT(allowed(*constraint, vocabulary.vocab()).size(), 3U);
}

TEST(Grammar, HopelessAndHostileSourcesAreOneSentence) {
  std::string deep = "{\"type\":\"array\",\"items\":", close;
  std::string nested;
  for (int i = 0; i < 500; ++i) {
    nested += deep;
    close += '}';
  }
  std::string groups(5000, '(');
  groups += 'a' + std::string(5000, ')');
  std::string rules = "root ::= a0\n";
  for (int i = 0; i < 40; ++i)
    rules += "a" + std::to_string(i) + " ::= a" + std::to_string(i + 1) + " a" + std::to_string(i + 1) + "\n";
  rules += "a40 ::= \"x\"\n";
  const std::vector<std::pair<StructuredOutput, std::string>> cases = {
      {{Kind::kJsonSchema, "{\"type\":"}, "not valid JSON"},
      {{Kind::kJsonSchema, "[1]"}, "not a JSON object"},
      {{Kind::kJsonSchema, nested + "{}" + close}, "nested deeper"},
      {{Kind::kJsonSchema, R"({"$ref": "https://example.com/s.json"})"}, "references within it"},
      {{Kind::kJsonSchema, R"({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}})"},
       "references within it"},
      {{Kind::kJsonSchema, R"({"$ref": "#/$defs/missing"})"}, ""},
      {{Kind::kJsonSchema, R"({"type": "nonsense"})"}, ""},
      {{Kind::kJsonSchema, R"({"type": "integer", "minimum": 5, "maximum": 2})"}, ""},
      {{Kind::kJsonSchema, R"({"type": "array", "uniqueItems": true})"}, "uniqueItems"},
      {{Kind::kJsonSchema, R"({"not": {"type": "string"}})"}, "not"},
      {{Kind::kRegex, "("}, ""},
      {{Kind::kRegex, "[z-a]"}, ""},
      {{Kind::kRegex, "(?=x)y"}, ""},
      {{Kind::kRegex, groups}, ""},
      {{Kind::kRegex, ""}, "empty"},
      {{Kind::kGrammar, "root ::= missing"}, ""},
      {{Kind::kGrammar, "nonsense"}, ""},
      {{Kind::kChoice, "[]"}, "at least one"},
      {{Kind::kChoice, "[1]"}, "strings"},
      {{Kind::kStructuralTag, "{}"}, ""},
      {{Kind::kJsonSchema, std::string(size_t{1} << 20, ' ')}, "bytes"},
  };
  GrammarCompiler& compiler = Vocabulary::reasoner().compiler();
  for (const auto& [what, sentence] : cases) {
    const auto grammar = compiler.compile(what);
    EXPECT_FALSE(grammar.ok()) << what.source.substr(0, 80);
    if (grammar.ok()) continue;
    EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(grammar.status().message(), HasSubstr(sentence));
    EXPECT_LT(grammar.status().message().size(), 420U);
    EXPECT_EQ(grammar.status().message().find('\n'), std::string::npos);
  }
}

TEST(Grammar, BombsEndWithinTheirLimits) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const int32_t eos[] = {vocabulary.eos()};
  GrammarLimits limits;
  limits.seconds = 0.3;
  limits.memory_bytes = size_t{64} << 20;
  GrammarCompiler compiler([&] { return grammar_vocabulary(vocabulary.tokenizer(), vocabulary.vocab(), eos); }, limits);
  std::string wide = R"({"type":"object","properties":{)";
  for (int i = 0; i < 3000; ++i)
    wide += (i ? "," : "") + ("\"p" + std::to_string(i)) + "\":{\"type\":\"string\",\"pattern\":\"[a-z]{1,900}\"}";
  wide += "}}";
  for (
      const StructuredOutput& what : std::vector<StructuredOutput>{
          {Kind::kRegex, "((((a{0,1000}){0,1000}){0,1000}){0,1000}){0,1000}"},
          {Kind::kRegex, "(a|b|ab)*(a|b|ab)*[ab]{5000000}"},
          {Kind::kJsonSchema, wide},
          {Kind::kJsonSchema,
           R"({"type":"array","items":{"type":"array","items":{"type":"string","minLength":100000},"minItems":100000},"minItems":100000})"},
      }) {
    const auto grammar = compiler.compile(what);
    // What can be compiled in little time and memory is none.
    if (grammar.ok()) {
      EXPECT_LT((*grammar)->bytes(), limits.memory_bytes) << what.source.substr(0, 60);
    } else {
      EXPECT_EQ(grammar.status().code(), StatusCode::kInvalidArgument) << grammar.status().message();
    }
  }
  EXPECT_TRUE(compiler.compile({Kind::kRegex, "a+"}).ok());
}

TEST(Grammar, IsCompiledOnceForManyAndForgottenWhenOthersNeedTheMemory) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const int32_t eos[] = {vocabulary.eos()};
  GrammarLimits limits;
  limits.cache_bytes = 20'000;
  GrammarCompiler compiler([&] { return grammar_vocabulary(vocabulary.tokenizer(), vocabulary.vocab(), eos); }, limits);
  std::vector<std::thread> clients;
  for (int i = 0; i < 4; ++i) {
    clients.emplace_back([&] { EXPECT_TRUE(compiler.compile({Kind::kRegex, "[a-z]+"}).ok()); });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(compiler.counts().compiled, 1);
  EXPECT_EQ(compiler.counts().hits, 3);
  EXPECT_FALSE(compiler.compile({Kind::kRegex, "("}).ok());
  EXPECT_FALSE(compiler.compile({Kind::kRegex, "("}).ok());
  EXPECT_EQ(compiler.counts().failed, 1);
  for (int i = 0; i < 40; ++i)
    EXPECT_TRUE(compiler.compile({Kind::kRegex, "[a-z]{" + std::to_string(i + 1) + "}"}).ok());
  EXPECT_LT(compiler.counts().cached, 42U);
  EXPECT_LE(compiler.counts().cached_bytes, limits.cache_bytes);
}

TEST(Grammar, TwoAnswersOfOneGrammarShareNoState) {
  Vocabulary& vocabulary = Vocabulary::reasoner();
  const auto first = vocabulary.constraint({Kind::kChoice, "[\"a\", \"b\"]"});
  const auto second = vocabulary.constraint({Kind::kChoice, "[\"a\", \"b\"]"});
  const std::vector<int32_t> before = allowed(*second, vocabulary.vocab());
  first->accept(vocabulary.tokenizer().encode("a", false).front());
  EXPECT_TRUE(first->finished());
  EXPECT_EQ(allowed(*second, vocabulary.vocab()), before);
}

}  // namespace
}  // namespace zipage
