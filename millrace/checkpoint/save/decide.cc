#include "millrace/checkpoint/save/decide.h"

#include <utility>

#include "millrace/checkpoint/save/result_message.h"

namespace millrace::checkpoint {

Result<Json> DecideOnRank0(RankExchange& group, std::string mine,
                           const std::function<Result<Json>(const std::vector<std::string>&)>& decide) {
  const std::vector<std::string> said = MR_TRY(group.Gather(std::move(mine)));
  std::string message;
  if (group.rank() == 0) {
    message = EncodeResult([&]() -> Result<std::string> {
      try {
        return DumpJson(MR_TRY(decide(said)));
      } catch (const Json::exception& error) {
        return Fail(Code::kInternal, "a rank sent a message of an unknown form: {}", error.what());
      }
    }());
  }
  const auto agreed = DecodeResult(MR_TRY(group.Broadcast(std::move(message))));
  if (!agreed) return Fail(Code::kUnavailable, "{}", agreed.error().ToString());
  return ParseJson(*agreed, "rank 0's answer");
}

}  // namespace millrace::checkpoint
