#include "millrace/csi/mounter/daemon_plan.h"

#include "millrace/base/json.h"

namespace millrace::csi {
namespace {

constexpr char kPlanFormat[] = "millrace-csi-daemon";

Result<std::vector<std::string>> Texts(const Json& json, std::string_view key) {
  const Json* list = JsonFind(json, key);
  if (list == nullptr || !list->is_array()) return Fail(Code::kCorrupt, "a plan without {}", key);
  std::vector<std::string> texts;
  for (const Json& each : *list) {
    if (!each.is_string()) return Fail(Code::kCorrupt, "a plan whose {} are no texts", key);
    texts.push_back(each.get<std::string>());
  }
  return texts;
}

}  // namespace

std::string DaemonPlan::Encode() const {
  Json json = {{"format", kPlanFormat},
               {"volume", volume},
               {"target", target},
               {"url", url},
               {"argv", process.argv},
               {"unset", process.unset_env},
               {"log", process.stdout_file.string()}};
  json["environment"] = Json::object();
  for (const auto& [name, value] : process.env) json["environment"][name] = value;
  return DumpJson(json);
}

Result<DaemonPlan> DaemonPlan::Decode(std::string_view text) {
  const Json json = MR_TRY(ParseJson(text, "a plan"));
  if (MR_TRY(JsonString(json, "format")) != kPlanFormat) return Fail(Code::kCorrupt, "a plan of another format");
  DaemonPlan plan;
  plan.volume = MR_TRY(JsonString(json, "volume"));
  plan.target = MR_TRY(JsonString(json, "target"));
  plan.url = MR_TRY(JsonString(json, "url"));
  Subprocess::Options& process = plan.process;
  process.argv = MR_TRY(Texts(json, "argv"));
  process.unset_env = MR_TRY(Texts(json, "unset"));
  process.stdout_file = process.stderr_file = MR_TRY(JsonString(json, "log"));
  process.working_directory = "/";
  process.die_with_parent = false;
  const Json* environment = JsonFind(json, "environment");
  if (environment == nullptr || !environment->is_object() || process.argv.empty()) {
    return Fail(Code::kCorrupt, "a plan that starts nothing");
  }
  for (const auto& [name, value] : environment->items()) {
    if (!value.is_string()) return Fail(Code::kCorrupt, "a plan whose environment is no text");
    process.env[name] = value.get<std::string>();
  }
  return plan;
}

}  // namespace millrace::csi
