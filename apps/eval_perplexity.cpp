#include "eval_perplexity.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>

#include "batch.h"
#include "exit_code.h"
#include "interrupt.h"
#include "table.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

// A text's tokens: [0, prompt) is the prompt, [prompt, ids.size()) is scored.
struct Text {
  std::string name;
  std::vector<int32_t> ids;
  size_t prompt = 0;
};

struct Row {
  std::string text;  // the file's name, or "all"
  const KvChoice* choice = nullptr;
  int64_t n = 0;  // scored tokens
  double nll_sum = 0;
  double tokens_per_second = 0;
  int64_t compressions = 0, preemptions = 0;
  int peak_kv_blocks = 0;
  double mean_nll() const { return nll_sum / static_cast<double>(std::max<int64_t>(n, 1)); }
};

Result<Text> read_text(const LLM& llm, const std::string& path, const PerplexityTask& task, int max_model_len) {
  constexpr size_t kPrompt = 1024;
  std::ifstream file(path, std::ios::binary);
  if (!file) return invalid_argument(fmt::format("{}: cannot be read", path)).with_param("perplexity");
  TextRequest request;
  request.prompt = std::string(std::istreambuf_iterator<char>(file), {});
  Text text;
  text.name = std::filesystem::path(path).filename().string();
  ZIPAGE_ASSIGN_OR_RETURN(text.ids, llm.tokenize(request));
  text.ids.resize(std::min(text.ids.size(), static_cast<size_t>(max_model_len)));
  if (text.ids.size() < 8) {
    return invalid_argument(fmt::format("{}: has {} tokens, at least 8 are needed", path, text.ids.size()))
        .with_param("perplexity");
  }
  text.prompt = text.ids.size() >= 2 * kPrompt ? kPrompt : text.ids.size() / 4;
  if (task.max_tokens > 0) {
    text.ids.resize(std::min(text.ids.size(), text.prompt + static_cast<size_t>(task.max_tokens)));
  }
  return text;
}

TextRequest forced_request(const Text& text) {
  TextRequest request;
  const auto middle = text.ids.begin() + static_cast<std::ptrdiff_t>(text.prompt);
  request.prompt_token_ids.emplace(text.ids.begin(), middle);
  request.request.forced_output_token_ids.assign(middle, text.ids.end());
  request.request.sampling.max_tokens = static_cast<int>(text.ids.end() - middle);
  request.request.sampling.temperature = 0;
  request.request.sampling.logprobs = 0;
  request.request.sampling.ignore_eos = true;
  return request;
}

// One configuration: a row a text and one for all.
Result<std::vector<Row>> score(CommonFlags& common, const KvChoice& choice, const PerplexityTask& task,
                               bool& interrupted) {
  common.config = choice.config;
  ZIPAGE_ASSIGN_OR_RETURN(const std::unique_ptr<LLM> llm, start_llm(common));
  std::vector<Text> texts;
  for (const std::string& path : task.files) {
    ZIPAGE_ASSIGN_OR_RETURN(Text text, read_text(*llm, path, task, llm->engine().model().max_model_len));
    texts.push_back(std::move(text));
  }
  std::vector<Row> rows(texts.size() + 1);
  Row& all = rows.back();
  Status first_error;
  Batch batch;
  batch.size = texts.size();
  batch.make = [&](size_t index) { return forced_request(texts[index]); };
  batch.done = [&](size_t index, BatchResult&& result) {
    if (first_error.ok()) first_error = result.error;
    Row& row = rows[index];
    for (const TokenLogprobs& entry : result.logprobs) row.nll_sum -= entry.logprob;
    row.n = static_cast<int64_t>(result.logprobs.size());
    row.compressions = result.last.tokens.kv_stats.compressions;
    row.preemptions = result.last.tokens.kv_stats.preemptions;
    all.nll_sum += row.nll_sum;
    all.n += row.n;
    all.compressions += row.compressions;
    all.preemptions += row.preemptions;
  };
  Progress progress(fmt::format("{:<16}", choice.title()), texts.size(), common.quiet);
  const BatchSummary summary = run_batch(*llm, batch, progress);
  interrupted = summary.interrupted;
  ZIPAGE_RETURN_IF_ERROR(first_error);
  for (size_t i = 0; i < rows.size(); ++i) {
    rows[i].text = i < texts.size() ? texts[i].name : "all";
    rows[i].choice = &choice;
    rows[i].tokens_per_second = static_cast<double>(summary.output_tokens) / std::max(summary.seconds, 1e-9);
    rows[i].peak_kv_blocks = llm->engine().stats().peak_blocks_live;
  }
  return rows;
}

// Mean negative log-likelihood above full KV's on the same text; null without a run of full KV.
json rise_of(const Row& row, const std::map<std::string, double>& full) {
  const auto found = full.find(row.text);
  return found == full.end() ? json() : json(row.mean_nll() - found->second);
}

}  // namespace

int run_perplexity(CommonFlags& common, std::span<const KvChoice> choices, const PerplexityTask& task) {
  std::vector<Row> rows;
  std::map<std::string, double> full;
  bool interrupted = false;
  for (const KvChoice& choice : choices) {
    Result<std::vector<Row>> scored = score(common, choice, task, interrupted);
    if (!scored.ok()) return fail(scored.status());
    if (interrupted) break;
    for (Row& row : *scored) {
      if (choice.budget == 0) full[row.text] = row.mean_nll();
      rows.push_back(std::move(row));
    }
  }
  std::vector<std::vector<std::string>> cells = {
      {"text", "KV policy", "budget", "tokens", "nats a token", "rise", "tokens/s", "compressions", "peak blocks"}};
  json list = json::array();
  for (const Row& row : rows) {
    const json rise = rise_of(row, full);
    const int budget = row.choice->budget;
    cells.push_back({row.text, row.choice->policy, budget == 0 ? "all" : fmt::format("{}", budget),
                     fmt::format("{}", row.n), fmt::format("{:.4f}", row.mean_nll()),
                     rise.is_null() ? "" : fmt::format("{:+.4f}", rise.get<double>()),
                     fmt::format("{:.0f}", row.tokens_per_second), fmt::format("{}", row.compressions),
                     fmt::format("{}", row.peak_kv_blocks)});
    list.push_back({{"task", row.text},
                    {"kv_policy", row.choice->policy},
                    {"kv_budget", budget},
                    {"n", row.n},
                    {"mean_nll", row.mean_nll()},
                    {"rise", rise},
                    {"tokens_per_second", row.tokens_per_second},
                    {"compressions", row.compressions},
                    {"preemptions", row.preemptions},
                    {"peak_kv_blocks", row.peak_kv_blocks}});
  }
  fmt::print("{}", markdown_table(cells, 2));
  if (!common.output_json.empty()) {
    if (const Status status = write_file(common.output_json, to_json_text(list) + '\n'); !status.ok()) {
      return fail(status);
    }
  }
  return interrupted ? kExitInterrupted : kExitOk;
}

}  // namespace zipage::apps
