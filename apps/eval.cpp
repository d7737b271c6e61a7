// zipage eval: how often a model is right, and how fast it is, under each KV policy and budget.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "answer_checker.h"
#include "base/parse_value.h"
#include "batch.h"
#include "command.h"
#include "eval_perplexity.h"
#include "eval_row.h"
#include "exit_code.h"
#include "interrupt.h"
#include "kv_choice.h"
#include "questions.h"
#include "ready_request.h"
#include "sampling_flags.h"
#include "shipped_model.h"
#include "start.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

// What was counted for one task.
struct Tally {
  int asked = 0, right = 0, finished = 0;
  int64_t output_tokens = 0, compressions = 0, preemptions = 0;
};

class Eval : public Command {
 public:
  void declare(Options& options) override {
    options.add("questions", "FILE...", "questions as JSONL; default: the shipped reasoner's", &files_);
    options.add("task", "NAME,...", "only these tasks", &tasks_);
    options.add("level", "NAME", "only questions of this level, as in the file: easy, hard", &filter_.level);
    options.add("limit", "N", "the first N questions of each task; 0: all", &filter_.limit, 0);
    options.add("checker", "{exact,number,boxed}",
                "an answer is right when its text, its last number or its last \\boxed{} is", &checker_name_);
    options.add("samples", "N", "answers to each question; pass@1 is their mean", &samples_, 1);
    options.add("perplexity", "FILE...",
                "score texts instead: the first 1,024 tokens (of short texts a quarter) are the prompt, the rest is "
                "forced, at most --max-tokens of it",
                &texts_);
    options.add("plot", "FILE.svg", "draw pass@1 and tokens/s over the budget", &plot_);
    options.add("kv-budget", "TOKENS,...", "budgets to compare; 0 is full KV", &budgets_);
    options.add("kv-policy", "NAME,...", "policies to compare at each budget", &policies_);
    add_chat_template(options, common_);
    add_sampling(options, &sampling_);
    add_common(options, common_, "also write the rows (JSON) to FILE");
  }

  int run(const Options& options) override {
    Status status = prepare(options);
    if (!status.ok()) return fail(status);
    const Result<std::vector<KvChoice>> choices = kv_choices(common_.config, policies_, budgets_);
    if (!choices.ok()) return fail(choices.status());
    const InterruptGuard guard;
    if (!texts_.empty()) {
      return run_perplexity(common_, *choices, {texts_, sampling_.value("max_tokens", 0)});
    }
    bool interrupted = false;
    for (const KvChoice& choice : *choices) {
      status = measure(choice, interrupted);
      if (!status.ok()) return fail(status);
      if (interrupted) break;
    }
    return report(interrupted);
  }

 private:
  Status prepare(const Options& options) {
    ZIPAGE_RETURN_IF_ERROR(default_model(common_.config.model));
    if (texts_.empty()) {
      ZIPAGE_ASSIGN_OR_RETURN(checker_, answer_checker(checker_name_));
      for (const std::string_view task : split_list(tasks_)) filter_.tasks.emplace_back(task);
      std::vector<std::filesystem::path> paths(files_.begin(), files_.end());
      if (paths.empty()) {
        ZIPAGE_ASSIGN_OR_RETURN(paths, shipped_questions());
      }
      ZIPAGE_ASSIGN_OR_RETURN(questions_, read_questions(paths, filter_));
    } else {
      for (const char* key : {"questions", "task", "level", "limit", "checker", "samples", "plot", "temperature"}) {
        if (!options.given(key)) continue;
        return invalid_argument(fmt::format("--{} is for questions, not for --perplexity", key)).with_param(key);
      }
    }
    if (!sampling_.contains("temperature")) sampling_["temperature"] = 0;
    ZIPAGE_RETURN_IF_ERROR(check_sampling(sampling_));
    if (samples_ > 1 && sampling_["temperature"] == 0) {
      return invalid_argument("--samples: greedy answers to one question are all the same; give a --temperature")
          .with_param("samples");
    }
    return {};
  }

  static Result<std::vector<std::filesystem::path>> shipped_questions() {
    ZIPAGE_ASSIGN_OR_RETURN(const std::filesystem::path reasoner, shipped_reasoner());
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::directory_iterator(reasoner / "questions")) {
      if (entry.path().extension() == ".jsonl") paths.push_back(entry.path());
    }
    std::sort(paths.begin(), paths.end());
    return paths;
  }

  // Every configuration has an engine of its own, so that no cached prefix and no peak of one reaches the next.
  Status measure(const KvChoice& choice, bool& interrupted) {
    common_.config = choice.config;
    ZIPAGE_ASSIGN_OR_RETURN(const std::unique_ptr<LLM> llm, start_llm(common_));
    const RequestContext context = request_context(*llm);
    const auto samples = static_cast<size_t>(samples_);
    Batch batch;
    batch.size = questions_.size() * samples;
    std::vector<std::optional<ReasoningParser>> reasoning(batch.size);
    batch.make = [&](size_t index) -> Result<TextRequest> {
      json fields = sampling_;
      fields["messages"] = json::parse(questions_[index / samples].messages);
      // Samples differ, and a second run repeats the first.
      fields["seed"] = sampling_.value("seed", int64_t{0}) + static_cast<int64_t>(index % samples);
      ZIPAGE_ASSIGN_OR_RETURN(ReadyRequest ready, ready_request(*llm, context, fields));
      reasoning[index] = std::move(ready.reasoning);
      return std::move(ready.request);
    };
    std::map<std::string, Tally> tallies;
    batch.done = [&](size_t index, BatchResult&& result) {
      const Question& question = questions_[index / samples];
      Tally& tally = tallies[question.task];
      ++tally.asked;
      if (!result.error.ok()) {
        ++failed_;
        if (first_error_.ok()) first_error_ = result.error;
        return;
      }
      if (reasoning[index]) {
        ReasoningParser::Delta begin = reasoning[index]->push(result.text), end = reasoning[index]->finish();
        result.text = begin.content + end.content;
      }
      if (is_right(checker_, result.text, question.answer)) ++tally.right;
      ++tally.finished;
      tally.output_tokens += result.last.tokens.num_output_tokens;
      tally.compressions += result.last.tokens.kv_stats.compressions;
      tally.preemptions += result.last.tokens.kv_stats.preemptions;
    };
    Progress progress(fmt::format("{:<16}", choice.title()), batch.size, common_.quiet);
    const BatchSummary summary = run_batch(*llm, batch, progress);
    progress.clear();
    interrupted = summary.interrupted;
    if (interrupted) return {};
    append_rows(choice, tallies, summary, llm->engine().stats().peak_blocks_live);
    return {};
  }

  void append_rows(const KvChoice& choice, const std::map<std::string, Tally>& tallies, const BatchSummary& summary,
                   int peak_blocks) {
    EvalRow all;
    const auto num_tasks = static_cast<double>(tallies.size());
    const auto append = [&](EvalRow row) {
      const Interval interval = wilson_interval(row.pass_at_1, row.n);
      row.ci95[0] = interval.low;
      row.ci95[1] = interval.high;
      row.kv_policy = choice.policy;
      row.kv_budget = choice.budget;
      row.tokens_per_second = static_cast<double>(summary.output_tokens) / std::max(summary.seconds, 1e-9);
      row.peak_kv_blocks = peak_blocks;
      rows_.push_back(std::move(row));
    };
    all.task = "all";
    for (const auto& [task, tally] : tallies) {
      EvalRow row;
      row.task = task;
      // Answers to one question are no independent trials: the interval counts questions.
      row.n = tally.asked / samples_;
      row.pass_at_1 = static_cast<double>(tally.right) / tally.asked;
      row.mean_output_tokens = static_cast<double>(tally.output_tokens) / std::max(tally.finished, 1);
      row.compressions = tally.compressions;
      row.preemptions = tally.preemptions;
      all.n += row.n;
      all.pass_at_1 += row.pass_at_1 / num_tasks;
      all.mean_output_tokens += row.mean_output_tokens / num_tasks;
      all.compressions += row.compressions;
      all.preemptions += row.preemptions;
      append(std::move(row));
    }
    append(std::move(all));
  }

  int report(bool interrupted) const {
    if (!rows_.empty()) fmt::print("{}", eval_table(rows_));
    if (!common_.output_json.empty()) {
      const Status status = write_file(common_.output_json, to_json_text(to_json(rows_)) + '\n');
      if (!status.ok()) return fail(status);
    }
    if (!plot_.empty()) {
      if (const Status status = write_file(plot_, eval_plot(rows_)); !status.ok()) return fail(status);
    }
    if (interrupted) return kExitInterrupted;
    if (failed_ == 0) return kExitOk;
    fmt::print(stderr, "zipage: {} answers failed and count as wrong; the first: {}\n", failed_,
               first_error_.message());
    return kExitSomeFailed;
  }

  CommonFlags common_;
  json sampling_;
  std::vector<std::string> files_, texts_;
  std::string tasks_, budgets_ = "0,512,1024", policies_ = "content";
  QuestionFilter filter_;
  std::string checker_name_ = "exact", plot_;
  int samples_ = 1;

  AnswerChecker checker_ = AnswerChecker::kExact;
  std::vector<Question> questions_;
  std::vector<EvalRow> rows_;
  int failed_ = 0;
  Status first_error_;
};

}  // namespace

CommandInfo eval_command() {
  return {"eval", "zipage eval [MODEL] [FLAGS]",
          "Measures right answers and speed, or the likelihood of texts, for KV policies and budgets.",
          [] { return std::unique_ptr<Command>(std::make_unique<Eval>()); }};
}

}  // namespace zipage::apps
