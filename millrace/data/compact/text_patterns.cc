#include "millrace/data/compact/text_patterns.h"

#include <re2/re2.h>

#include <algorithm>
#include <utility>
#include <vector>

namespace millrace::data {
namespace {

using Expressions = std::vector<std::unique_ptr<const re2::RE2>>;

Result<Expressions> CompileAll(std::span<const std::string> patterns) {
  re2::RE2::Options options;
  options.set_log_errors(false);
  Expressions compiled;
  for (const std::string& pattern : patterns) {
    auto expression = std::make_unique<const re2::RE2>(pattern, options);
    if (!expression->ok()) {
      return Fail(Code::kInvalidArgument, "the regular expression \"{}\" is not valid: {}; expected the syntax of RE2",
                  pattern, expression->error());
    }
    compiled.push_back(std::move(expression));
  }
  return compiled;
}

bool Matches(const re2::RE2& expression, std::string_view text) {
  return re2::RE2::PartialMatch(re2::StringPiece(text.data(), text.size()), expression);
}

}  // namespace

struct TextPatterns::Rep {
  Expressions wanted, unwanted;
};

TextPatterns::TextPatterns(std::unique_ptr<const Rep> rep) : rep_(std::move(rep)) {}
TextPatterns::TextPatterns(TextPatterns&&) noexcept = default;
TextPatterns& TextPatterns::operator=(TextPatterns&&) noexcept = default;
TextPatterns::~TextPatterns() = default;

Result<TextPatterns> TextPatterns::Compile(std::span<const std::string> wanted, std::span<const std::string> unwanted) {
  auto rep = std::make_unique<Rep>();
  rep->wanted = MR_TRY(CompileAll(wanted));
  rep->unwanted = MR_TRY(CompileAll(unwanted));
  return TextPatterns(std::move(rep));
}

bool TextPatterns::HasAllWanted(std::string_view text) const {
  return std::ranges::all_of(rep_->wanted, [&](const auto& expression) { return Matches(*expression, text); });
}

bool TextPatterns::HasUnwanted(std::string_view text) const {
  return std::ranges::any_of(rep_->unwanted, [&](const auto& expression) { return Matches(*expression, text); });
}

}  // namespace millrace::data
