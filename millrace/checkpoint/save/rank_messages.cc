#include "millrace/checkpoint/save/rank_messages.h"

#include <string_view>
#include <utility>

#include "millrace/checkpoint/exchange/result_message.h"

namespace millrace::checkpoint {
namespace {

/// The first byte of an encoded outcome.
enum class Certainty : std::uint8_t { kKnown = 1, kUnknown = 2 };

}  // namespace

std::string EncodeReport(const Result<RankReport>& report) {
  if (!report) return EncodeResult(Fail(report.error()));
  return EncodeResult(static_cast<char>(report->contents) + report->part.Serialize());
}

Result<RankReport> DecodeReport(std::string message, std::size_t rank) {
  const auto text = DecodeResult(std::move(message));
  if (!text) return Fail(text.error().Context(fmt::format("rank {}", rank)));
  if (text->empty()) return Fail(Code::kInternal, "rank {} reported nothing", rank);
  const auto contents = static_cast<RankReport::Contents>(text->front());
  if (contents != RankReport::Contents::kFull && contents != RankReport::Contents::kFileOnly)
    return Fail(Code::kInternal, "rank {} sent an unknown report", rank);
  const std::string_view manifest = std::string_view(*text).substr(1);
  Manifest part = MR_TRY(Manifest::ParsePart(manifest, fmt::format("report of rank {}", rank)));
  return RankReport{contents, std::move(part)};
}

std::string EncodeOutcome(const CommitOutcome& outcome) {
  Result<std::string> result;
  if (!outcome.status) result = Fail(outcome.status.error());
  return static_cast<char>(outcome.is_unknown ? Certainty::kUnknown : Certainty::kKnown) + EncodeResult(result);
}

CommitOutcome DecodeOutcome(std::string message) {
  const bool is_known = !message.empty() && message.front() == static_cast<char>(Certainty::kKnown);
  if (!message.empty()) message.erase(0, 1);
  const auto result = DecodeResult(std::move(message));
  return {result ? Status() : Fail(result.error()), !is_known};
}

}  // namespace millrace::checkpoint
