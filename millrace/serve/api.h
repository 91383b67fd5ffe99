// The HTTP interface of a served model.
//
//   POST /v1/completions   OpenAI's, with "stream": true as server-sent events
//   GET  /v1/models  /v1/models/NAME
//   POST /invocations      GET /ping       SageMaker's
//   GET  /health           200, or 503 while the server drains
//   GET  /metrics          Prometheus
//
// With keys, all but /ping and /health want `Authorization: Bearer KEY`.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <string_view>

#include "millrace/base/clock.h"
#include "millrace/base/log.h"
#include "millrace/http/server/access.h"
#include "millrace/http/server/server.h"
#include "millrace/metrics/metrics.h"
#include "millrace/serve/completion.h"
#include "millrace/serve/scheduler.h"
#include "millrace/tokenizer/tokenizer.h"

namespace millrace::serve {

/// Answers requests. Handle is an http::Handler. Thread-safe. A request blocks its connection's thread until its text
/// is generated. The scheduler limits how many texts run or wait; beyond that the answer is 429 with Retry-After. A
/// client that disconnects cancels its texts.
class Api {
 public:
  struct Options {
    std::string model_name;  ///< what requests call the model
    int context_length = 0;  ///< tokens, prompt included
    bool add_bos = false;    ///< text prompts start with the tokenizer's beginning-of-text token
    RequestLimits limits;
    http::ApiKeys keys;  ///< who may ask; none: everybody
    std::uint64_t max_body_bytes = 4 * kMiB;
    Logger log;
  };
  /// REQUIRES: `scheduler`, `tokenizer` and `clock` outlive this object.
  Api(Scheduler& scheduler, const tokenizer::Tokenizer& tokenizer, Clock& clock, Options options);

  void Handle(http::ServerRequest& request, http::ServerResponse& response);
  /// From now on /health and /ping answer 503, so that load balancers choose other servers. Requests are still
  /// answered.
  void Drain() { draining_.store(true, std::memory_order_relaxed); }

 private:
  struct Metrics {
    explicit Metrics(metrics::Registry& registry);
    metrics::Counter &prompt_tokens, &generated_tokens, &cancelled;
    metrics::Gauge &running, &waiting;
    metrics::Histogram &first_token_s, &request_s;
  };
  /// One completions request: its generations and the form of its answer.
  struct Job;

  void Complete(http::ServerRequest& request, http::ServerResponse& response, bool invocation);
  Parsed<Invocation> ReadBody(http::ServerRequest& request, bool invocation) const;
  Parsed<Job> Admit(Invocation invocation);
  Parsed<std::vector<TokenId>> Tokens(const Prompt& prompt) const;
  Status Stream(Job& job, http::ServerRequest& request, http::ServerResponse& response);
  Status Collect(Job& job, http::ServerRequest& request, http::ServerResponse& response);
  /// Generates the text of choice `index` and calls `emit` with its pieces. Returns the finish reason of the protocol.
  template <class Emit>
  Result<std::string> MakeText(Job& job, std::size_t index, std::stop_token stop, Emit emit);

  void SendJson(http::ServerResponse& response, int status, const Json& body);
  void SendError(http::ServerResponse& response, const ApiError& error);
  void SendHealth(http::ServerResponse& response);
  void SendModels(http::ServerResponse& response, std::string_view name);
  void SendMetrics(http::ServerResponse& response);
  Json ModelEntry() const;
  void Count(int status);

  Scheduler& scheduler_;
  const tokenizer::Tokenizer& tokenizer_;
  Clock& clock_;
  const Options options_;
  const std::int64_t created_;
  metrics::Registry registry_;
  Metrics metrics_{registry_};
  std::atomic<bool> draining_{false};
};

}  // namespace millrace::serve
