// zipage generate: one prompt streamed, or a file of requests as JSONL in input order.
#include <fmt/format.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include "base/parse_value.h"
#include "batch.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "ready_request.h"
#include "sampling_flags.h"
#include "start.h"
#include "text/json_fields.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

json logprob_entry(const TokenLogprobs& entry) {
  json top = json::array();
  for (const auto& [token, logprob] : entry.top) top.push_back({token, logprob});
  return {{"token", entry.token}, {"logprob", entry.logprob}, {"rank", entry.rank}, {"top", std::move(top)}};
}

// One request of the input and what is known of it until its row is written.
struct Line {
  std::string text;  // JSON, as read
  json id;           // the line's own, else its number
  std::optional<ReasoningParser> reasoning;
  std::string echo;  // written before the output
};

json row_of(Line& line, BatchResult&& result) {
  if (!result.error.ok()) return {{"id", line.id}, {"error", result.error.message()}};
  const TextOutput& last = result.last;
  json thought;
  if (line.reasoning) {
    ReasoningParser::Delta begin = line.reasoning->push(result.text), end = line.reasoning->finish();
    result.text = begin.content + end.content;
    if (std::string text = begin.reasoning + end.reasoning; !text.empty()) thought = std::move(text);
  }
  const KvStats& kv = last.tokens.kv_stats;
  json row = {
      {"id", line.id},
      {"text", line.echo + result.text},
      {"reasoning_content", std::move(thought)},
      {"token_ids", std::move(result.token_ids)},
      {"finish_reason", name(last.finish_reason)},
      {"stop_reason", last.stop_reason.empty() ? json() : json(last.stop_reason)},
      {"usage",
       {{"prompt_tokens", last.tokens.num_prompt_tokens}, {"completion_tokens", last.tokens.num_output_tokens}}},
      {"kv_stats",
       {{"resident_tokens", kv.resident_tokens},
        {"evicted_tokens", kv.evicted_tokens},
        {"compressions", kv.compressions},
        {"swaps", kv.swaps}}},
  };
  if (last.tokens.stop_token_id) row["stop_reason"] = *last.tokens.stop_token_id;
  if (!result.logprobs.empty()) {
    json& list = row["logprobs"] = json::array();
    for (const TokenLogprobs& entry : result.logprobs) list.push_back(logprob_entry(entry));
  }
  if (!result.prompt_logprobs.empty()) {
    json& list = row["prompt_logprobs"] = json::array();
    for (const auto& entry : result.prompt_logprobs) list.push_back(entry ? logprob_entry(*entry) : json());
  }
  return row;
}

// Lets rows out in input order, each as soon as those before it are out.
class RowWriter {
 public:
  RowWriter(std::FILE* to, std::ofstream* copy) : to_(to), copy_(copy) {}

  void put(size_t index, const json& row) {
    waiting_[index] = to_json_text(row) + '\n';
    while (!waiting_.empty() && waiting_.begin()->first == next_) {
      write(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      ++next_;
    }
  }
  // What is left when rows before it will never come.
  void flush() {
    for (const auto& [index, text] : waiting_) write(text);
    waiting_.clear();
  }

 private:
  void write(const std::string& text) {
    if (to_ != nullptr) {
      fmt::print(to_, "{}", text);
      std::fflush(to_);
    }
    if (copy_ != nullptr) *copy_ << text << std::flush;
  }

  std::FILE* to_;        // null: nowhere
  std::ofstream* copy_;  // null: none
  size_t next_ = 0;
  std::map<size_t, std::string> waiting_;
};

Result<std::vector<Line>> read_lines(std::istream& in) {
  std::vector<Line> lines;
  for (std::string text; std::getline(in, text);) {
    if (trim(text).empty()) continue;
    const json number = lines.size();
    lines.push_back({std::move(text), number});
  }
  return lines;
}

class Generate : public Command {
 public:
  void declare(Options& options) override {
    options.add("prompt", "TEXT", "one prompt; its output is printed as it comes", &prompt_, 'p');
    options.add("chat", "--prompt is a user's message, not raw text", &chat_);
    options.add("prompts", "FILE", "requests as JSONL, - for stdin; see docs/cli.md", &prompts_);
    add_chat_template(options, common_);
    add_sampling(options, &defaults_);
    add_common(options, common_, "also write the rows (JSONL) to FILE");
  }

  int run(const Options& options) override {
    if (const Status status = read_input(options); !status.ok()) return fail(status);
    if (const Status status = check_sampling(defaults_); !status.ok()) return fail(status);
    std::ofstream copy;
    if (!common_.output_json.empty()) {
      copy.open(common_.output_json, std::ios::binary);
      if (!copy) {
        return fail(Status(StatusCode::kInternal, fmt::format("{}: cannot be written", common_.output_json)));
      }
    }
    const InterruptGuard guard;
    Result<std::unique_ptr<LLM>> llm = start_llm(common_);
    if (!llm.ok()) return fail(llm.status());
    return generate(**llm, copy.is_open() ? &copy : nullptr);
  }

 private:
  // A single prompt becomes a line like those of a file.
  Status read_input(const Options& options) {
    if (options.given("prompt") && options.given("prompts")) {
      return invalid_argument("--prompt and --prompts exclude each other").with_param("prompts");
    }
    if (options.given("prompt")) {
      take_single(prompt_);
      return {};
    }
    if (options.given("prompts") && prompts_ != "-") {
      std::ifstream file(prompts_, std::ios::binary);
      if (!file) return invalid_argument(fmt::format("{}: cannot be read", prompts_)).with_param("prompts");
      ZIPAGE_ASSIGN_OR_RETURN(lines_, read_lines(file));
      return {};
    }
    if (!options.given("prompts")) {
      if (isatty(STDIN_FILENO) != 0) {
        return invalid_argument("nothing to do: give --prompt TEXT, --prompts FILE, or requests on stdin");
      }
      // Plain text on stdin is one prompt.
      const bool jsonl = (std::cin >> std::ws).peek() == '{';
      if (!jsonl) {
        take_single({std::istreambuf_iterator<char>(std::cin), {}});
        return {};
      }
    }
    ZIPAGE_ASSIGN_OR_RETURN(lines_, read_lines(std::cin));
    return {};
  }

  void take_single(const std::string& text) {
    single_ = true;
    json line;
    if (chat_) {
      line["messages"] = {{{"role", "user"}, {"content", text}}};
    } else {
      line["prompt"] = text;
    }
    lines_.push_back({to_json_text(line), 0});
  }

  int generate(LLM& llm, std::ofstream* copy) {
    const RequestContext context = request_context(llm);
    RowWriter rows(single_ ? nullptr : stdout, copy);
    Progress progress("generate", lines_.size(), common_.quiet || single_);
    Status first_error;
    Batch batch;
    batch.size = lines_.size();
    batch.make = [&](size_t index) { return make_request(llm, context, lines_[index]); };
    batch.done = [&](size_t index, BatchResult&& result) {
      if (first_error.ok()) first_error = result.error;
      if (!single_) progress.clear();
      rows.put(index, row_of(lines_[index], std::move(result)));
    };
    if (single_) {
      batch.delta = [](size_t /*index*/, const std::string& delta) {
        fmt::print("{}", delta);
        std::fflush(stdout);
      };
    }
    const BatchSummary summary = run_batch(llm, batch, progress);
    rows.flush();
    progress.clear();
    if (single_ && summary.output_tokens > 0) fmt::print("\n");
    if (!common_.quiet) {
      fmt::print(stderr, "{} of {} requests done, {} failed; {} output tokens in {:.1f} s, {:.0f} tokens/s\n",
                 summary.succeeded, lines_.size(), summary.failed, summary.output_tokens, summary.seconds,
                 static_cast<double>(summary.output_tokens) / std::max(summary.seconds, 1e-9));
    }
    if (summary.interrupted) return kExitInterrupted;
    if (single_ && !first_error.ok()) return fail(first_error);
    return summary.failed > 0 ? kExitSomeFailed : kExitOk;
  }

  Result<TextRequest> make_request(LLM& llm, const RequestContext& context, Line& line) const {
    const std::string text = std::exchange(line.text, {});
    ZIPAGE_ASSIGN_OR_RETURN(const json body, parse_json_object(text));
    if (const auto id = body.find("id"); id != body.end() && !id->is_null()) line.id = *id;
    json fields = defaults_;
    fields.update(body);
    ZIPAGE_ASSIGN_OR_RETURN(ReadyRequest ready, ready_request(llm, context, fields, text));
    line.reasoning = std::move(ready.reasoning);
    line.echo = std::move(ready.echo);
    return std::move(ready.request);
  }

  CommonFlags common_;
  json defaults_;
  std::string prompt_, prompts_;
  bool chat_ = false;
  bool single_ = false;
  std::vector<Line> lines_;
};

}  // namespace

CommandInfo generate_command() {
  return {"generate", "zipage generate [MODEL] [FLAGS]", "Generates text offline: one prompt, or a file of requests.",
          [] { return std::unique_ptr<Command>(std::make_unique<Generate>()); }};
}

}  // namespace zipage::apps
