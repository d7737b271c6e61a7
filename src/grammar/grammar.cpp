#include "grammar/grammar.h"

#include <fmt/format.h>
#include <pthread.h>
#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <condition_variable>
#include <future>
#include <list>
#include <map>
#include <mutex>
#include <optional>
#include <thread>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/task_threads.h"
#include "grammar/allocation_limit.h"
#include "grammar/grammar_constraint.h"
#include "grammar/grammar_source.h"
#include "grammar/xgrammar_log.h"

namespace zipage {
namespace {

// XGrammar's parsers recurse; this depth fits its thread's stack many times over.
constexpr int kMaxRecursion = 2'000;
constexpr size_t kStackBytes = size_t{64} << 20;
// A weak model may write line breaks for ever where it may; deep indentation has room.
constexpr int kMaxWhitespace = 24;
constexpr int kMaskThreads = 2;
constexpr int kVocabularySizeLimit = 1 << 24;

// Runs `work` on a thread with a stack of kStackBytes and waits for it.
template <typename Work>
void on_deep_stack(Work work) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, kStackBytes);
  pthread_t thread{};
  const int failed = pthread_create(
      &thread, &attributes,
      [](void* argument) -> void* {
        (*static_cast<Work*>(argument))();
        return nullptr;
      },
      &work);
  pthread_attr_destroy(&attributes);
  if (failed == 0) {
    pthread_join(thread, nullptr);
  } else {
    work();
  }
}

class Compiled final : public CompiledGrammar {
 public:
  Compiled(xgrammar::CompiledGrammar grammar, std::shared_ptr<TaskThreads> workers)
      : grammar_(std::move(grammar)), workers_(std::move(workers)), bytes_(grammar_.MemorySizeBytes()) {}

  size_t bytes() const override { return bytes_; }

  std::shared_ptr<TokenConstraint> constraint(ThoughtGate gate,
                                              const std::vector<int32_t>& stop_token_ids) const override {
    const xgrammar::TokenizerInfo info = grammar_.GetTokenizerInfo();
    std::vector<int32_t> stops = info.GetStopTokenIds();
    for (const int32_t id : stop_token_ids) {
      if (std::ranges::find(stops, id) == stops.end()) stops.push_back(id);
    }
    auto match = std::make_shared<GrammarMatch>(grammar_, stops, info.GetVocabSize(), workers_);
    return std::make_shared<GrammarConstraint>(std::move(match), std::move(gate), std::move(stops));
  }

 private:
  xgrammar::CompiledGrammar grammar_;
  std::shared_ptr<TaskThreads> workers_;
  size_t bytes_;
};

using Outcome = Result<std::shared_ptr<const CompiledGrammar>>;
using Key = std::tuple<StructuredOutput::Kind, std::string, bool>;

xgrammar::CompiledGrammar compile_schema(xgrammar::GrammarCompiler& compiler, const std::string& schema,
                                         bool any_whitespace) {
  const std::optional<int> most = any_whitespace ? std::optional(kMaxWhitespace) : std::nullopt;
  return compiler.CompileJSONSchema(schema, any_whitespace, std::nullopt, std::nullopt, true, most);
}

xgrammar::CompiledGrammar compile_with(xgrammar::GrammarCompiler& compiler, const StructuredOutput& what) {
  using Kind = StructuredOutput::Kind;
  switch (what.kind) {
    case Kind::kJsonObject:
      return compile_schema(compiler, R"({"type": "object"})", what.any_whitespace);
    case Kind::kJsonSchema:
      return compile_schema(compiler, what.source, what.any_whitespace);
    case Kind::kRegex:
      return compiler.CompileRegex(what.source);
    case Kind::kGrammar:
      return compiler.CompileGrammar(what.source);
    case Kind::kStructuralTag:
      return compiler.CompileStructuralTag(what.source);
    case Kind::kChoice:
      break;
  }
  const Result<std::string> grammar = choice_grammar(what.source);
  ZIPAGE_CHECK(grammar.ok(), "choices passed their check and are no grammar: {}", grammar.status().message());
  return compiler.CompileGrammar(*grammar);
}

}  // namespace

class GrammarCompiler::Impl {
 public:
  Impl(std::function<GrammarVocabulary()> vocabulary, GrammarLimits limits)
      : make_vocabulary_(std::move(vocabulary)), limits_(limits) {}

  Outcome compile(const StructuredOutput& what) {
    ZIPAGE_RETURN_IF_ERROR(check_source(what, limits_.source_bytes));
    const Key key(what.kind, what.source, what.any_whitespace);
    std::promise<Outcome> promise;
    {
      std::unique_lock lock(mutex_);
      if (const auto found = entries_.find(key); found != entries_.end()) {
        ++counts_.hits;
        recent_.splice(recent_.begin(), recent_, found->second.place);
        const std::shared_future<Outcome> outcome = found->second.outcome;
        lock.unlock();
        return outcome.get();
      }
      if (waiting_ >= limits_.waiting) {
        return Status(StatusCode::kResourceExhausted, fmt::format("{} grammars are waiting to be compiled", waiting_));
      }
      recent_.push_front(key);
      entries_.emplace(key, Entry{promise.get_future().share(), recent_.begin(), 0});
      ++waiting_;
      free_.wait(lock, [this] { return compiling_ < limits_.concurrent; });
      --waiting_;
      ++compiling_;
    }
    std::optional<Outcome> outcome;
    on_deep_stack([&] { outcome = compile_limited(what); });
    {
      const std::lock_guard lock(mutex_);
      --compiling_;
      ++(outcome->ok() ? counts_.compiled : counts_.failed);
      Entry& entry = entries_.at(key);
      entry.bytes = std::get<1>(key).size() + 256 + (outcome->ok() ? outcome->value()->bytes() : 0);
      counts_.cached_bytes += entry.bytes;
      promise.set_value(*outcome);
      evict();
    }
    free_.notify_one();
    return *outcome;
  }

  Counts counts() const {
    const std::lock_guard lock(mutex_);
    Counts counts = counts_;
    counts.cached = entries_.size();
    return counts;
  }

 private:
  struct Entry {
    std::shared_future<Outcome> outcome;
    std::list<Key>::iterator place;
    size_t bytes;  // 0 while it is compiled
  };

  // The oldest go first; what is being compiled stays.
  void evict() {
    auto place = recent_.end();
    while (counts_.cached_bytes > limits_.cache_bytes && place != recent_.begin()) {
      --place;
      const auto entry = entries_.find(*place);
      if (entry->second.bytes == 0) continue;
      counts_.cached_bytes -= entry->second.bytes;
      entries_.erase(entry);
      place = recent_.erase(place);
    }
  }

  const xgrammar::TokenizerInfo& tokenizer_info() {
    std::call_once(vocabulary_once_, [this] {
      const GrammarVocabulary vocabulary = make_vocabulary_();
      ZIPAGE_CHECK(vocabulary.tokens.size() < kVocabularySizeLimit, "{} tokens", vocabulary.tokens.size());
      xgrammar::SetMaxRecursionDepth(kMaxRecursion);
      info_.emplace(vocabulary.tokens, xgrammar::VocabType::RAW, static_cast<int>(vocabulary.tokens.size()),
                    vocabulary.stop_token_ids, false);
      workers_ = std::make_shared<TaskThreads>(kMaskThreads);
    });
    return *info_;
  }

  Outcome compile_limited(const StructuredOutput& what) {
    const xgrammar::TokenizerInfo& info = tokenizer_info();
    std::optional<xgrammar::CompiledGrammar> grammar;
    XgrammarWarnings warnings;
    try {
      const AllocationLimit limit(limits_.seconds, limits_.memory_bytes);
      xgrammar::GrammarCompiler compiler(info, 1, false);
      grammar = compile_with(compiler, what);
    } catch (const LimitExceeded& error) {
      return invalid_argument(
          error.of_time() ? fmt::format("the grammar takes more than {} s to compile", limits_.seconds)
                          : fmt::format("the grammar takes more than {} MiB to compile", limits_.memory_bytes >> 20));
    } catch (const std::exception& error) {
      return invalid_argument(fmt::format("the grammar cannot be compiled: {}", readable(error.what())));
    }
    for (const std::string& warning : warnings.lines()) {
      if (drops_a_constraint(warning)) {
        return invalid_argument(fmt::format("the grammar cannot be kept to: {}", readable(warning)));
      }
    }
    return std::shared_ptr<const CompiledGrammar>(std::make_shared<Compiled>(*std::move(grammar), workers_));
  }

  const std::function<GrammarVocabulary()> make_vocabulary_;
  const GrammarLimits limits_;
  std::once_flag vocabulary_once_;
  std::optional<xgrammar::TokenizerInfo> info_;
  std::shared_ptr<TaskThreads> workers_;

  mutable std::mutex mutex_;
  std::condition_variable free_;
  std::map<Key, Entry> entries_;     // guarded by mutex_
  std::list<Key> recent_;            // guarded by mutex_; the newest first
  int waiting_ = 0, compiling_ = 0;  // guarded by mutex_
  Counts counts_;                    // guarded by mutex_
};

GrammarCompiler::GrammarCompiler(std::function<GrammarVocabulary()> vocabulary, GrammarLimits limits)
    : impl_(std::make_shared<Impl>(std::move(vocabulary), limits)) {}

GrammarCompiler::~GrammarCompiler() = default;

Result<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::compile(const StructuredOutput& what) {
  return impl_->compile(what);
}

GrammarCompiler::Counts GrammarCompiler::counts() const {
  return impl_->counts();
}

}  // namespace zipage
