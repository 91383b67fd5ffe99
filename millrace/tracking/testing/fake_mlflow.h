// A tracking server of MLflow that keeps all in memory.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "millrace/base/json.h"
#include "millrace/base/text.h"
#include "millrace/base/threads/sync.h"
#include "millrace/http/testing/scripted_server.h"

namespace millrace::tracking {

/// Answers the endpoints that MlflowTracker uses, as MLflow does: with its limits, its error codes, and parameters that
/// never change.
class FakeMlflow {
 public:
  struct Metric {
    std::string key;
    Json value;
    std::uint64_t step = 0;
    bool operator==(const Metric&) const = default;
  };
  struct Run {
    std::string experiment, name, status = "RUNNING";
    bool has_end = false;
    std::map<std::string, std::string> params, tags;
    std::vector<Metric> metrics;
  };
  using Reply = http::testing::ScriptedServer::Reply;
  using Seen = http::testing::ScriptedServer::Seen;
  /// Called with each request before it is answered. What it returns is sent in place of the answer.
  using Hook = std::function<std::optional<Reply>(const Seen&)>;

  explicit FakeMlflow(Hook hook = {})
      : hook_(std::move(hook)), server_([this](const Seen& seen) { return Answer(seen); }) {}

  std::string url() const { return server_.url(); }
  std::vector<Seen> seen() const { return server_.seen(); }
  std::map<std::string, Run> runs() const {
    MutexLock lock(mutex_);
    return runs_;
  }
  std::map<std::string, std::string> experiments() const {
    MutexLock lock(mutex_);
    return experiments_;
  }
  /// The longest value of a parameter that it takes. Call it before requests.
  void SetValueLimit(std::size_t bytes) { value_limit_ = bytes; }

 private:
  static Reply Ok(const Json& body) { return {.bytes = http::testing::Answer(200, DumpJson(body))}; }
  static Reply Refuse(int status, std::string_view code, std::string_view message) {
    return {.bytes = http::testing::Answer(status, DumpJson({{"error_code", code}, {"message", message}}))};
  }

  Reply Answer(const Seen& seen) {
    if (hook_) {
      if (auto reply = hook_(seen)) return *std::move(reply);
    }
    MutexLock lock(mutex_);
    const std::string target = seen.target;
    const std::string_view prefix = "/api/2.0/mlflow/";
    if (!target.starts_with(prefix)) return Refuse(404, "ENDPOINT_NOT_FOUND", target);
    const std::string call = target.substr(prefix.size(), target.find('?') - prefix.size());
    const std::string query = target.contains('?') ? PercentDecode(target.substr(target.find('=') + 1)).value() : "";
    const Json body = seen.body.empty() ? Json::object() : ParseJson(seen.body, "body").value();
    if (call == "experiments/get-by-name") return Experiment(query);
    if (call == "experiments/create") {
      if (experiments_.contains(body["name"])) return Refuse(400, "RESOURCE_ALREADY_EXISTS", "there is one");
      const std::string id = std::to_string(experiments_.size() + 1);
      experiments_[body["name"]] = id;
      return Ok({{"experiment_id", id}});
    }
    if (call == "runs/search") return Search(body);
    if (call == "runs/create") return Create(body);
    const std::string id = call == "runs/get" ? query : body.value("run_id", "");
    if (!runs_.contains(id)) return Refuse(404, "RESOURCE_DOES_NOT_EXIST", "no run " + id);
    Run& run = runs_[id];
    if (call == "runs/get") return Ok({{"run", {{"data", {{"params", Pairs(run.params)}}}}}});
    if (call == "runs/update") {
      run.status = body["status"];
      run.has_end = body.contains("end_time");
      return Ok({{"run_info", {{"run_id", id}}}});
    }
    if (call == "runs/log-batch") return LogBatch(run, body);
    return Refuse(404, "ENDPOINT_NOT_FOUND", call);
  }

  Reply Experiment(const std::string& name) MR_NO_THREAD_SAFETY_ANALYSIS {
    const auto found = experiments_.find(name);
    if (found == experiments_.end()) return Refuse(404, "RESOURCE_DOES_NOT_EXIST", "no experiment");
    return Ok({{"experiment",
                {{"experiment_id", found->second}, {"lifecycle_stage", name == "deleted" ? "deleted" : "active"}}}});
  }

  Reply Search(const Json& body) MR_NO_THREAD_SAFETY_ANALYSIS {
    Json found = Json::array();
    for (const auto& [id, run] : runs_) {
      const auto tag = run.tags.find("millrace.run");
      const std::string filter = tag == run.tags.end() ? "" : "tags.`millrace.run` = '" + tag->second + "'";
      if (body["filter"] != filter || body["experiment_ids"] != Json::array({run.experiment})) continue;
      found.push_back({{"info", {{"run_id", id}}}});
    }
    return Ok(found.empty() ? Json::object() : Json::object({{"runs", found}}));
  }

  Reply Create(const Json& body) MR_NO_THREAD_SAFETY_ANALYSIS {
    const std::string id = "run" + std::to_string(runs_.size() + 1);
    Run& run = runs_[id];
    run.experiment = body["experiment_id"];
    run.name = body["run_name"];
    for (const Json& tag : body["tags"]) run.tags[tag["key"]] = tag["value"];
    return Ok({{"run", {{"info", {{"run_id", id}}}}}});
  }

  Reply LogBatch(Run& run, const Json& body) const {
    const Json metrics = body.value("metrics", Json::array()), params = body.value("params", Json::array()),
               tags = body.value("tags", Json::array());
    if (metrics.size() > 1000 || params.size() > 100 || tags.size() > 100) {
      return Refuse(400, "INVALID_PARAMETER_VALUE", "a batch is too long");
    }
    for (const Json& param : params) {
      const auto known = run.params.find(param["key"]);
      const std::string value = param["value"];
      if (value.size() > value_limit_) return Refuse(400, "INVALID_PARAMETER_VALUE", "a value is too long");
      if (known != run.params.end() && known->second != value) {
        return Refuse(400, "INVALID_PARAMETER_VALUE", "Changing param values is not allowed");
      }
      run.params[param["key"]] = value;
    }
    for (const Json& tag : tags) run.tags[tag["key"]] = tag["value"];
    for (const Json& m : metrics) run.metrics.push_back({.key = m["key"], .value = m["value"], .step = m["step"]});
    return Ok(Json::object());
  }

  static Json Pairs(const std::map<std::string, std::string>& map) {
    Json pairs = Json::array();
    for (const auto& [key, value] : map) pairs.push_back({{"key", key}, {"value", value}});
    return pairs;
  }

  const Hook hook_;
  std::size_t value_limit_ = 6000;
  mutable Mutex mutex_;
  std::map<std::string, std::string> experiments_ MR_GUARDED_BY(mutex_);  ///< ids by name
  std::map<std::string, Run> runs_ MR_GUARDED_BY(mutex_);                 ///< by id
  http::testing::ScriptedServer server_;                                  ///< last: calls the others
};

}  // namespace millrace::tracking
