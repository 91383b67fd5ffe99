#include "millrace/checkpoint/save/rank_messages.h"

#include <string_view>
#include <utility>

#include "millrace/checkpoint/save/result_message.h"

namespace millrace::checkpoint {
namespace {

/// The first byte of an encoded beginning or outcome.
enum class Certainty : std::uint8_t { kKnown = 1, kUnknown = 2, kLost = 3, kUnknownLost = 4 };

std::string Encode(Certainty certainty, const Result<std::string>& result) {
  return static_cast<char>(certainty) + EncodeResult(result);
}
/// Takes the first byte off. A message without one is unknown.
Certainty TakeCertainty(std::string& message) {
  if (message.empty()) return Certainty::kUnknown;
  const auto certainty = static_cast<Certainty>(message.front());
  message.erase(0, 1);
  const bool is_one = certainty >= Certainty::kKnown && certainty <= Certainty::kUnknownLost;
  return is_one ? certainty : Certainty::kUnknown;
}

}  // namespace

std::string EncodeBegin(const SaveBegin& begin) {
  return Encode(begin.is_lost ? Certainty::kLost : Certainty::kKnown, begin.attempt);
}

SaveBegin DecodeBegin(std::string message) {
  const bool is_lost = TakeCertainty(message) == Certainty::kLost;
  return {DecodeResult(std::move(message)), is_lost};
}

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
  if (outcome.is_lost) return Encode(outcome.is_unknown ? Certainty::kUnknownLost : Certainty::kLost, result);
  return Encode(outcome.is_unknown ? Certainty::kUnknown : Certainty::kKnown, result);
}

CommitOutcome DecodeOutcome(std::string message) {
  const Certainty certainty = TakeCertainty(message);
  const auto result = DecodeResult(std::move(message));
  return {.status = result ? Status() : Fail(result.error()),
          .is_unknown = certainty == Certainty::kUnknown || certainty == Certainty::kUnknownLost,
          .is_lost = certainty == Certainty::kLost || certainty == Certainty::kUnknownLost};
}

}  // namespace millrace::checkpoint
