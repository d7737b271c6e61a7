// zipage bench throughput: many requests at once, tokens per second; two configurations in turn with --compare.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/parse_value.h"
#include "bench_run.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "ready_request.h"
#include "shipped_model.h"
#include "start.h"
#include "table.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

constexpr int kRounds = 3;  // of --compare
constexpr int kDefaultPrompts = 64, kDefaultInput = 128, kDefaultOutput = 512;

class BenchThroughput : public Command {
 public:
  void declare(Options& options) override {
    options.add("num-prompts", "N", "requests, all at once [random: 64; jsonl: the file's lines, repeated in turn]",
                &num_prompts_, 1);
    options.add("input-len", "TOKENS", "prompt tokens of a random request [128]", &input_len_, 1);
    options.add("output-len", "TOKENS", "output tokens, EOS ignored [random: 512; jsonl: as the line says]",
                &output_len_, 1);
    options.add({{"dataset-name", KnobType::kChoice, "", "{random,jsonl}",
                  "random token ids, or lines as of generate --prompts; jsonl when --dataset-path is given"},
                 0,
                 "",
                 true,
                 [this](std::string_view name) {
                   dataset_ = std::string(name);
                   if (name == "random" || name == "jsonl") return Status();
                   return invalid_argument(fmt::format("--dataset-name must be random or jsonl, not '{}'", name))
                       .with_param("dataset-name");
                 }});
    options.add("dataset-path", "FILE", "the requests of jsonl", &dataset_path_);
    options.add("compare", "FLAGS",
                "\"--kv-budget 0\": also run with these flags of the engine, in turn three times, and print the ratio",
                &compare_);
    add_common(options, common_, "also write the numbers (JSON) to FILE");
  }

  int run(const Options& options) override {
    set_log_level(common_.quiet ? LogLevel::kError : LogLevel::kWarning);
    Result<std::vector<EngineConfig>> configs = configurations(options);
    if (!configs.ok()) return fail(configs.status());
    if (const Status status = prepare(); !status.ok()) return fail(status);
    const InterruptGuard guard;
    std::vector<std::vector<ThroughputRun>> runs(configs->size());
    const int rounds = configs->size() > 1 ? kRounds : 1;
    for (int round = 0; round < rounds; ++round) {
      for (size_t i = 0; i < configs->size(); ++i) {
        const std::string title = configs->size() > 1 ? fmt::format("{} {}/{}", "AB"[i], round + 1, rounds) : "bench";
        Result<ThroughputRun> run = measure_throughput((*configs)[i], title, workload(), common_.quiet);
        if (!run.ok()) return fail(run.status());
        if (run->interrupted) return kExitInterrupted;
        runs[i].push_back(*std::move(run));
      }
    }
    return runs.size() > 1 ? report_ratio(*configs, runs) : report(runs[0][0]);
  }

 private:
  // The command line's, and with --compare that with the other flags on top.
  Result<std::vector<EngineConfig>> configurations(const Options& options) {
    ZIPAGE_RETURN_IF_ERROR(default_model(common_.config.model));
    std::vector<EngineConfig> configs = {common_.config};
    if (options.given("compare")) {
      EngineConfig other = common_.config;
      Options engine("--compare \"FLAGS\"", "");
      engine.add_engine(&other);
      std::vector<std::string> words;
      for (const std::string_view word : split_list(compare_, ' ')) {
        if (!word.empty()) words.emplace_back(word);
      }
      const Result<Options::Outcome> outcome = engine.parse(words);
      if (!outcome.ok()) {
        return invalid_argument(fmt::format("--compare: {}", outcome.status().message())).with_param("compare");
      }
      configs.push_back(std::move(other));
    }
    for (const EngineConfig& config : configs) ZIPAGE_RETURN_IF_ERROR(validate(config));
    return configs;
  }

  Status prepare() {
    if (dataset_.empty()) dataset_ = dataset_path_.empty() ? "random" : "jsonl";
    if (dataset_ == "random") {
      if (dataset_path_.empty()) return {};
      return invalid_argument("--dataset-path is for --dataset-name jsonl").with_param("dataset-path");
    }
    if (input_len_) return invalid_argument("--input-len is for --dataset-name random").with_param("input-len");
    std::ifstream file(dataset_path_, std::ios::binary);
    if (!file) {
      return invalid_argument(fmt::format("--dataset-path: '{}' cannot be read", dataset_path_))
          .with_param("dataset-path");
    }
    for (std::string line; std::getline(file, line);) {
      if (!trim(line).empty()) lines_.push_back(line);
    }
    if (lines_.empty()) return invalid_argument(fmt::format("{}: has no lines", dataset_path_));
    return {};
  }

  Workload workload() const {
    Workload work;
    const bool random = dataset_ == "random";
    work.size = static_cast<size_t>(num_prompts_.value_or(random ? kDefaultPrompts : static_cast<int>(lines_.size())));
    work.make = [this, random](LLM& llm, size_t index) {
      return random ? random_request(llm, index) : line_request(llm, index);
    };
    return work;
  }

  Result<TextRequest> random_request(LLM& llm, size_t index) const {
    TextRequest request;
    request.prompt_token_ids = random_prompt_ids(common_.config.seed, index, input_len_.value_or(kDefaultInput),
                                                 llm.engine().model().vocab_size);
    request.request.sampling.temperature = 0;
    request.request.sampling.max_tokens = output_len_.value_or(kDefaultOutput);
    request.request.sampling.ignore_eos = true;
    return request;
  }

  Result<TextRequest> line_request(LLM& llm, size_t index) const {
    ZIPAGE_ASSIGN_OR_RETURN(const json body, parse_json_object(lines_[index % lines_.size()]));
    json fields = {{"temperature", 0}};
    fields.update(body);
    if (output_len_) {
      fields["max_tokens"] = *output_len_;
      fields["ignore_eos"] = true;
    }
    ZIPAGE_ASSIGN_OR_RETURN(ReadyRequest ready, ready_request(llm, request_context(llm), fields));
    return std::move(ready.request);
  }

  static std::vector<std::string> cells(const std::string& name, const ThroughputRun& run) {
    return {name,
            fmt::format("{:.1f}", run.elapsed_time),
            fmt::format("{}", run.num_requests),
            fmt::format("{:.2f}", run.requests_per_second()),
            fmt::format("{:.0f}", run.tokens_per_second()),
            fmt::format("{:.0f}", run.output_tokens_per_second()),
            fmt::format("{:.2f}", run.step_ms_p50),
            fmt::format("{:.2f}", run.step_ms_p99),
            fmt::format("{:.1f} %", run.compression_fraction * 100),
            run.memory_bandwidth_fraction ? fmt::format("{:.0f} %", *run.memory_bandwidth_fraction * 100) : "",
            fmt::format("{}", run.preemptions),
            fmt::format("{}", run.swaps),
            fmt::format("{}", run.peak_kv_blocks)};
  }

  static std::vector<std::string> heading() {
    return {"run",         "seconds",     "requests",  "requests/s",  "tokens/s", "output tokens/s", "step p50 ms",
            "step p99 ms", "compression", "bandwidth", "preemptions", "swaps",    "peak blocks"};
  }

  int report(const ThroughputRun& run) const {
    fmt::print("{}", markdown_table({heading(), cells("", run)}, 1));
    return write(to_json(run));
  }

  int report_ratio(const std::vector<EngineConfig>& configs,
                   const std::vector<std::vector<ThroughputRun>>& runs) const {
    std::vector<std::vector<std::string>> table = {heading()};
    std::vector<double> ratios;
    json numbers;
    for (size_t i = 0; i < runs.size(); ++i) {
      json list = json::array();
      for (const ThroughputRun& run : runs[i]) {
        table.push_back(cells(fmt::format("{} {}", "AB"[i], list.size() + 1), run));
        list.push_back(to_json(run));
      }
      numbers["AB"[i] == 'A' ? "a" : "b"] = {{"flags", effective_flags(configs[i])}, {"runs", std::move(list)}};
    }
    for (int round = 0; round < kRounds; ++round) {
      const auto at = static_cast<size_t>(round);
      ratios.push_back(runs[0][at].output_tokens_per_second() / runs[1][at].output_tokens_per_second());
    }
    const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
    const double middle = percentile(ratios, 0.5);
    fmt::print("{}\nA: {}\nB: {}\nA makes {:.2f} times B's output tokens/s ({:.2f} to {:.2f} in {} rounds).\n",
               markdown_table(table, 1), effective_flags(configs[0]), effective_flags(configs[1]), middle, *least,
               *most, kRounds);
    numbers["ratio"] = {{"median", middle}, {"min", *least}, {"max", *most}, {"rounds", ratios}};
    return write(numbers);
  }

  int write(const json& numbers) const {
    if (common_.output_json.empty()) return kExitOk;
    const Status status = write_file(common_.output_json, to_json_text(numbers) + '\n');
    return status.ok() ? kExitOk : fail(status);
  }

  CommonFlags common_;
  std::optional<int> num_prompts_, input_len_, output_len_;
  std::string dataset_, dataset_path_, compare_;
  std::vector<std::string> lines_;
};

}  // namespace

CommandInfo bench_throughput_command() {
  return {"bench-throughput", "zipage bench throughput [MODEL] [FLAGS]",
          "Tokens a second of many requests at once; --compare puts two configurations side by side.",
          [] { return std::unique_ptr<Command>(std::make_unique<BenchThroughput>()); }};
}

}  // namespace zipage::apps
