// zipage demo: a burst of reasoning questions on a tight pool, full KV beside a compressed one, answers checked.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "answer_checker.h"
#include "base/log.h"
#include "batch.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "questions.h"
#include "ready_request.h"
#include "shipped_model.h"
#include "start.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

constexpr std::string_view kTasks[] = {"quantities", "boxes", "paths", "reduce"};

// The first questions of the level of each task.
Result<std::vector<Question>> demo_questions(const std::filesystem::path& folder, const std::string& level,
                                             int per_task) {
  std::vector<std::filesystem::path> paths;
  for (std::string_view task : kTasks) paths.push_back(folder / fmt::format("{}.jsonl", task));
  ZIPAGE_ASSIGN_OR_RETURN(std::vector<Question> questions, read_questions(paths, {{}, level, per_task}));
  if (questions.size() < std::size(kTasks) * static_cast<size_t>(per_task)) {
    return invalid_argument(fmt::format("--questions: {} has only {} {} questions of the {} asked for", folder.string(),
                                        questions.size(), level, std::size(kTasks) * static_cast<size_t>(per_task)))
        .with_param("questions");
  }
  return questions;
}

struct Outcome {
  std::string name;
  int asked = 0, solved = 0;
  double tokens_per_second = 0, seconds = 0;
  int peak_blocks = 0;      // of one request
  int64_t preemptions = 0;  // of all
  int64_t compressions = 0;
  bool interrupted = false;
};

struct Style {
  std::string_view bold, green, dim, off;
};
Style style() {
  if (isatty(STDOUT_FILENO) == 0) return {};
  return {"\033[1m", "\033[32m", "\033[2m", "\033[0m"};
}

void print_table(const std::vector<Outcome>& outcomes) {
  const Style s = style();
  fmt::print("\n{}{:<22}{:>10}{:>11}{:>13}{:>13}{:>8}{}\n", s.bold, "", "solved", "output", "peak blocks", "", "wall",
             s.off);
  fmt::print("{}{:<22}{:>10}{:>11}{:>13}{:>13}{:>8}{}\n", s.bold, "KV cache", "of asked", "tokens/s", "a request",
             "preemptions", "time", s.off);
  fmt::print("{}\n", std::string(77, '-'));
  for (const Outcome& o : outcomes) {
    fmt::print("{:<22}{:>10}{:>11.0f}{:>13}{:>13}{:>7.0f}s\n", o.name, fmt::format("{} / {}", o.solved, o.asked),
               o.tokens_per_second, o.peak_blocks, o.preemptions, o.seconds);
  }
}

class Demo : public Command {
 public:
  void declare(Options& options) override {
    options.add("questions", "N", "questions of each of the four tasks", &per_task_, 1);
    options.add("level", "easy|hard", "how hard they are", &level_);
    options.add("num-gpu-blocks-override", "BLOCKS", "blocks of 64 tokens in the KV pool", &blocks_, 1);
    options.add("kv-budget", "TOKENS", "tokens that a compression keeps", &budget_, 64);
    options.add("threads", "N", "CPU threads; 0: the cores this process may use", &threads_, 0);
    options.add("output-json", "FILE", "also write the rows (JSON) to FILE", &output_json_);
    options.add("quiet", "no progress on stderr", &quiet_, 'q');
  }

  int run(const Options& /*options*/) override {
    const InterruptGuard guard;
    set_log_level(LogLevel::kError);
    const Result<std::filesystem::path> reasoner = shipped_reasoner();
    if (!reasoner.ok()) return fail(reasoner.status());
    const Result<std::vector<Question>> questions = demo_questions(*reasoner / "questions", level_, per_task_);
    if (!questions.ok()) return fail(questions.status());

    fmt::print(
        "{} {} questions at once, four tasks, a KV pool of {} blocks of 64 tokens.\n"
        "Each is thought through, then answered, and the answer is checked.\n",
        questions->size(), level_, blocks_);
    std::fflush(stdout);
    std::vector<Outcome> outcomes;
    for (const int budget : {0, budget_}) {
      Result<Outcome> outcome = serve(*reasoner / "model", *questions, budget);
      if (!outcome.ok()) return fail(outcome.status());
      outcomes.push_back(*std::move(outcome));
      if (outcomes.back().interrupted) {
        fmt::print("\ninterrupted after {} of {} answers\n", outcomes.back().asked, questions->size());
        return kExitInterrupted;
      }
    }
    print_table(outcomes);
    close(outcomes[0], outcomes[1]);
    return output_json_.empty() ? kExitOk : write_rows(outcomes);
  }

 private:
  EngineConfig configuration(const std::filesystem::path& model, int budget) const {
    EngineConfig config;
    config.model = model.string();
    config.num_gpu_blocks_override = blocks_;
    config.block_size = 64;
    config.max_model_len = 4096;
    config.max_num_seqs = 64;
    config.compression.kv_budget = budget;
    config.compression.kv_slack = 64;
    config.compression_mode = CompressionMode::kInline;
    config.threads = threads_;
    return config;
  }

  Result<Outcome> serve(const std::filesystem::path& model, const std::vector<Question>& questions, int budget) const {
    ZIPAGE_ASSIGN_OR_RETURN(const std::unique_ptr<LLM> llm, LLM::create(configuration(model, budget)));
    Outcome outcome;
    outcome.name = budget == 0 ? "full KV" : fmt::format("content, budget {}", budget);
    Batch batch;
    batch.size = questions.size();
    const RequestContext context = request_context(*llm);
    std::vector<std::optional<ReasoningParser>> reasoning(questions.size());
    batch.make = [&](size_t index) -> Result<TextRequest> {
      const json fields = {{"messages", json::parse(questions[index].messages)}, {"temperature", 0}};
      ZIPAGE_ASSIGN_OR_RETURN(ReadyRequest ready, ready_request(*llm, context, fields));
      reasoning[index] = std::move(ready.reasoning);
      return std::move(ready.request);
    };
    Status first_error;
    batch.done = [&](size_t index, BatchResult&& result) {
      if (first_error.ok()) first_error = result.error;
      ++outcome.asked;
      if (reasoning[index] &&
          is_right(AnswerChecker::kExact, reasoning[index]->push(result.text).content, questions[index].answer)) {
        ++outcome.solved;
      }
      outcome.peak_blocks = std::max(outcome.peak_blocks, result.last.tokens.kv_stats.peak_blocks);
    };
    Progress progress(fmt::format("{:<20}", outcome.name), questions.size(), quiet_);
    const BatchSummary summary = run_batch(*llm, batch, progress);
    ZIPAGE_RETURN_IF_ERROR(first_error);
    const EngineStats stats = llm->engine().stats();
    outcome.preemptions = stats.preemptions;
    outcome.compressions = stats.compressions;
    outcome.seconds = summary.seconds;
    outcome.tokens_per_second = static_cast<double>(summary.output_tokens) / std::max(summary.seconds, 1e-9);
    outcome.interrupted = summary.interrupted;
    return outcome;
  }

  void close(const Outcome& full, const Outcome& compressed) const {
    const Style s = style();
    fmt::print(
        "\n{}Compressed PagedAttention made {:.1f} times the tokens a second in at most {} blocks a\n"
        "request instead of {}, and solved {} of {} questions where full KV solved {}.{}\n",
        s.green, compressed.tokens_per_second / full.tokens_per_second, compressed.peak_blocks, full.peak_blocks,
        compressed.solved, compressed.asked, full.solved, s.off);
  }

  int write_rows(const std::vector<Outcome>& outcomes) const {
    json rows = json::array();
    for (const Outcome& o : outcomes) {
      rows.push_back({{"name", o.name},
                      {"asked", o.asked},
                      {"solved", o.solved},
                      {"output_tokens_per_second", o.tokens_per_second},
                      {"peak_kv_blocks", o.peak_blocks},
                      {"preemptions", o.preemptions},
                      {"compressions", o.compressions},
                      {"elapsed_time", o.seconds}});
    }
    const Status status = write_file(output_json_, to_json_text(rows) + '\n');
    return status.ok() ? kExitOk : fail(status);
  }

  int per_task_ = 12, blocks_ = 160, budget_ = 512, threads_ = 0;
  std::string level_ = "hard", output_json_;
  bool quiet_ = false;
};

}  // namespace

CommandInfo demo_command() {
  return {"demo", "zipage demo [FLAGS]", "Serves a burst of questions in little memory, with full KV and compressed.",
          [] { return std::unique_ptr<Command>(std::make_unique<Demo>()); }};
}

}  // namespace zipage::apps
