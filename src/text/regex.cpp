#include "text/regex.h"

#include <fmt/format.h>

#include "base/check.h"
#include "text/utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace zipage {
namespace {

// A match may take this many steps; real pre-tokenizers need a few per character.
constexpr uint32_t kMatchLimit = 20'000'000;

}  // namespace

struct Regex::Program {
  pcre2_code* code = nullptr;
  pcre2_match_context* context = nullptr;
  bool jit = false;
  std::string literal;
  ~Program() {
    pcre2_code_free(code);
    pcre2_match_context_free(context);
  }
};

Regex::Regex(std::unique_ptr<Program> program) : program_(std::move(program)) {}
Regex::~Regex() = default;

Result<std::shared_ptr<const Regex>> Regex::compile(std::string_view pattern) {
  ZIPAGE_ASSIGN_OR_RETURN(const std::string translated, translate_oniguruma(pattern));
  auto program = std::make_unique<Program>();
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_compile_context* options = pcre2_compile_context_create(nullptr);
  ZIPAGE_CHECK(options != nullptr, "out of memory");
  pcre2_set_newline(options, PCRE2_NEWLINE_LF);
  pcre2_set_parens_nest_limit(options, 100);
  program->code =
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error, &offset, options);
  pcre2_compile_context_free(options);
  if (program->code == nullptr) {
    PCRE2_UCHAR message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return invalid_argument(fmt::format("the regular expression '{}' does not compile: {}", pattern,
                                        reinterpret_cast<const char*>(message)));
  }
  program->jit = pcre2_jit_compile(program->code, PCRE2_JIT_COMPLETE) == 0;
  program->context = pcre2_match_context_create(nullptr);
  ZIPAGE_CHECK(program->context != nullptr, "out of memory");
  pcre2_set_match_limit(program->context, kMatchLimit);
  return std::shared_ptr<const Regex>(new Regex(std::move(program)));
}

std::shared_ptr<const Regex> Regex::literal(std::string_view text) {
  auto program = std::make_unique<Program>();
  program->literal = std::string(text);
  return std::shared_ptr<const Regex>(new Regex(std::move(program)));
}

void Regex::find_all(std::string_view text, std::vector<ByteRange>& out) const {
  if (program_->code == nullptr) {
    const std::string& word = program_->literal;
    if (word.empty()) return;
    for (size_t at = text.find(word); at != std::string_view::npos; at = text.find(word, at + word.size())) {
      out.push_back({at, at + word.size()});
    }
    return;
  }
  struct FreeMatchData {
    void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
  };
  const std::unique_ptr<pcre2_match_data, FreeMatchData> match(
      pcre2_match_data_create_from_pattern(program_->code, nullptr));
  ZIPAGE_CHECK(match != nullptr, "out of memory");
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  const auto search = [&](size_t start) {
    int rc = PCRE2_ERROR_JIT_STACKLIMIT;
    if (program_->jit) {
      rc = pcre2_jit_match(program_->code, subject, text.size(), start, 0, match.get(), program_->context);
    }
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {
      rc = pcre2_match(program_->code, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, match.get(),
                       program_->context);
    }
    return rc;
  };
  size_t start = 0;
  bool has_last = false;
  size_t last_end = 0;
  while (start <= text.size() && search(start) >= 0) {
    const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(match.get());
    const ByteRange found{ends[0], ends[1]};
    if (found.end < found.begin) break;  // \K in a lookahead
    if (found.size() == 0) {
      // An empty match right behind another match is none.
      if (!has_last || last_end != found.end) out.push_back(found);
      start = found.end + std::max<size_t>(1, next_utf8_unit(text.substr(found.end)).size);
    } else {
      out.push_back(found);
      start = found.end;
    }
    last_end = found.end;
    has_last = true;
  }
}

}  // namespace zipage
