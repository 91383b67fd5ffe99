#include "millrace/checkpoint/exchange/agree.h"

namespace millrace::checkpoint {

Result<Json> Agree(Group& group, std::string mine,
                   const std::function<Result<Json>(const std::vector<std::string>&)>& answer) {
  const std::vector<std::string> said = MR_TRY(group.Gather(std::move(mine)));
  std::string text;
  if (group.rank() == 0) {
    const Result<Json> agreed = [&]() -> Result<Json> {
      try {
        return answer(said);
      } catch (const Json::exception& error) {
        return Fail(Code::kInternal, "a rank says what no rank would: {}", error.what());
      }
    }();
    text = agreed ? DumpJson({{"answer", *agreed}}) : DumpJson({{"error", agreed.error().ToString()}});
  }
  const Json agreed = MR_TRY(ParseJson(MR_TRY(group.Broadcast(std::move(text))), "rank 0's answer"));
  if (const Json* error = JsonFind(agreed, "error")) return Fail(Code::kUnavailable, "{}", error->get<std::string>());
  return agreed.at("answer");
}

}  // namespace millrace::checkpoint
