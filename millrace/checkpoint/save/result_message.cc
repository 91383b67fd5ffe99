#include "millrace/checkpoint/save/result_message.h"

#include <cstdint>
#include <utility>

namespace millrace::checkpoint {
namespace {

/// The first byte of every message: the version of the form, so that ranks of different versions do not misread each
/// other. It is greater than every code, since messages of old releases began with a code.
constexpr auto kForm = static_cast<char>(0x81);
/// The bytes kForm and outcome.
constexpr std::size_t kHeaderBytes = 2;
/// The second byte: kSuccess, or kFirstCode plus the error's code.
constexpr std::uint8_t kSuccess = 0;
constexpr std::uint8_t kFirstCode = 1, kLastCode = kFirstCode + static_cast<std::uint8_t>(Code::kInternal);

}  // namespace

std::string EncodeResult(const Result<std::string>& result) {
  const std::uint8_t outcome =
      result ? kSuccess : static_cast<std::uint8_t>(kFirstCode + static_cast<std::uint8_t>(result.error().code()));
  std::string message{kForm, static_cast<char>(outcome)};
  return message.append(result ? *result : result.error().ToString());
}

Result<std::string> DecodeResult(std::string message) {
  if (message.empty()) return Fail(Code::kInternal, "an empty message from another rank");
  if (message.size() < kHeaderBytes || message[0] != kForm)
    return Fail(Code::kInternal,
                "an unknown message from another rank: do all ranks run the same version of Millrace?");
  const auto outcome = static_cast<std::uint8_t>(message[1]);
  if (outcome > kLastCode) return Fail(Code::kInternal, "an unknown message from another rank");
  message.erase(0, kHeaderBytes);
  if (outcome == kSuccess) return message;
  return Fail(Error(static_cast<Code>(outcome - kFirstCode), std::move(message)));
}

}  // namespace millrace::checkpoint
