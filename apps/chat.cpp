// zipage chat: a conversation on the terminal. Thoughts are dimmed; Ctrl-C stops the answer, Ctrl-D ends the program.
#include <fmt/format.h>
#include <unistd.h>

#include <functional>
#include <iostream>

#include "base/parse_value.h"
#include "batch.h"
#include "command.h"
#include "exit_code.h"
#include "interrupt.h"
#include "ready_request.h"
#include "remote_chat.h"
#include "sampling_flags.h"
#include "start.h"

namespace zipage::apps {
namespace {

using nlohmann::json;

// Writes an answer as it comes, its thought dimmed on a terminal.
class AnswerPrinter {
 public:
  explicit AnswerPrinter(bool show_thinking) : show_thinking_(show_thinking), terminal_(isatty(STDOUT_FILENO) != 0) {}

  // Of text that holds the thought: what divides it.
  void split(std::optional<ReasoningParser> reasoning) { reasoning_ = std::move(reasoning); }

  void push(const std::string& delta) {
    print(reasoning_ ? reasoning_->push(delta) : ReasoningParser::Delta{"", delta});
  }
  void finish() {
    if (reasoning_) print(reasoning_->finish());
    if (dimmed_) fmt::print("\033[0m");
    if (shown_) fmt::print("\n");
    std::fflush(stdout);
  }
  const std::string& content() const { return content_; }
  void print(const ReasoningParser::Delta& piece) {
    shown_ = true;
    if (!piece.reasoning.empty() && show_thinking_) {
      if (terminal_ && !dimmed_) fmt::print("\033[2m");
      dimmed_ = terminal_;
      thought_ = true;
      fmt::print("{}", piece.reasoning);
    }
    if (!piece.content.empty()) {
      std::string text = piece.content;
      // Templates put line breaks after a thought; one is enough here.
      if (content_.empty()) text.erase(0, std::min(text.find_first_not_of(" \n"), text.size()));
      if (!text.empty()) {
        if (dimmed_) fmt::print("\033[0m");
        if (thought_) fmt::print("\n\n");
        dimmed_ = thought_ = false;
        fmt::print("{}", text);
        content_ += text;
      }
    }
    std::fflush(stdout);
  }

 private:
  std::optional<ReasoningParser> reasoning_;
  bool show_thinking_, terminal_;
  bool shown_ = false, dimmed_ = false, thought_ = false;
  std::string content_;
};

class Chat : public Command {
 public:
  void declare(Options& options) override {
    options.add("url", "URL", "talk with the model of a running server (http://host:port), load none", &url_);
    options.add("api-key", "KEY", "of that server", &api_key_);
    options.add("system", "TEXT", "the conversation's first message", &system_);
    options.add("hide-thinking", "print answers only", &hide_thinking_);
    add_chat_template(options, common_);
    add_sampling(options, &defaults_);
    options.add("quiet", "no log on stderr", &common_.quiet, 'q');
    options.add_engine(&common_.config);
  }

  int run(const Options& /*options*/) override {
    if (const Status status = check_sampling(defaults_); !status.ok()) return fail(status);
    const InterruptGuard guard;
    if (!url_.empty()) {
      Result<RemoteChat> remote = RemoteChat::open(url_, common_.config.model, api_key_);
      if (!remote.ok()) return fail(remote.status());
      return converse(
          [&](const json& fields, AnswerPrinter& printer) { return answer_from(*remote, fields, printer); });
    }
    Result<std::unique_ptr<LLM>> llm = start_llm(common_);
    if (!llm.ok()) return fail(llm.status());
    return converse([&](const json& fields, AnswerPrinter& printer) { return answer_from(**llm, fields, printer); });
  }

 private:
  // Prints an answer to `fields`, as far as it comes.
  using Answerer = std::function<Status(const json& fields, AnswerPrinter& printer)>;

  int converse(const Answerer& answerer) {
    const bool terminal = isatty(STDIN_FILENO) != 0;
    if (terminal) fmt::print(stderr, "Ctrl-C stops an answer, /clear forgets the conversation, Ctrl-D ends.\n");
    forget();
    while (true) {
      if (terminal) fmt::print(stderr, "> ");
      std::string line;
      if (!std::getline(std::cin, line)) {
        if (!InterruptGuard::interrupted()) break;
        InterruptGuard::clear();
        std::cin.clear();
        std::clearerr(stdin);
        fmt::print(stderr, "\n");
        continue;
      }
      if (trim(line).empty()) continue;
      if (trim(line) == "/clear") {
        forget();
        continue;
      }
      answer(answerer, line);
    }
    if (terminal) fmt::print(stderr, "\n");
    return failed_ ? kExitSomeFailed : kExitOk;
  }

  void forget() {
    messages_ = json::array();
    if (!system_.empty()) messages_.push_back({{"role", "system"}, {"content", system_}});
  }

  static Status answer_from(LLM& llm, const json& fields, AnswerPrinter& printer) {
    ZIPAGE_ASSIGN_OR_RETURN(ReadyRequest ready, ready_request(llm, request_context(llm), fields));
    printer.split(std::move(ready.reasoning));
    Status status;
    Progress no_progress("", 1, true);
    Batch batch;
    batch.size = 1;
    batch.make = [&](size_t /*index*/) { return std::move(ready.request); };
    batch.delta = [&](size_t /*index*/, const std::string& delta) { printer.push(delta); };
    batch.done = [&](size_t /*index*/, BatchResult&& result) { status = result.error; };
    run_batch(llm, batch, no_progress);
    return status;
  }

  static Status answer_from(const RemoteChat& chat, const json& fields, AnswerPrinter& printer) {
    return chat.answer(fields, [&](std::string_view reasoning, std::string_view content) {
      printer.print({std::string(reasoning), std::string(content)});
    });
  }

  void answer(const Answerer& answerer, const std::string& question) {
    messages_.push_back({{"role", "user"}, {"content", question}});
    json fields = defaults_;
    fields["messages"] = messages_;
    AnswerPrinter printer(!hide_thinking_);
    const Status status = answerer(fields, printer);
    InterruptGuard::clear();
    printer.finish();
    if (status.ok()) {
      messages_.push_back({{"role", "assistant"}, {"content", printer.content()}});
      return;
    }
    // The question that could not be answered is forgotten, so that the next one has a chance.
    failed_ = true;
    fmt::print(stderr, "zipage: {}\n", status.message());
    messages_.erase(messages_.size() - 1);
  }

  CommonFlags common_;
  json defaults_, messages_;
  std::string system_, url_, api_key_;
  bool hide_thinking_ = false;
  bool failed_ = false;
};

}  // namespace

CommandInfo chat_command() {
  return {"chat", "zipage chat [MODEL] [FLAGS]", "Talks with a model on the terminal.",
          [] { return std::unique_ptr<Command>(std::make_unique<Chat>()); }};
}

}  // namespace zipage::apps
