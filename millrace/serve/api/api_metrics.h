// The metrics of the HTTP interface of a served model.
#pragma once

#include "millrace/base/threads/sync.h"
#include "millrace/metrics/metrics.h"
#include "millrace/serve/models/adapter_store.h"
#include "millrace/serve/models/model_follower.h"
#include "millrace/serve/models/served_scheduler.h"

namespace millrace::serve {

/// Registers the metrics and holds them. Thread-safe.
class ApiMetrics {
 public:
  /// REQUIRES: `registry` outlives this object.
  explicit ApiMetrics(metrics::Registry& registry);

  /// Sets gauges and raises counters to what the scheduler, the follower and the adapters have counted. `follower` and
  /// `adapters` may be null.
  void Update(const ServedScheduler& scheduler, const ModelFollower* follower, const AdapterStore* adapters);

  metrics::Counter &prompt_tokens, &generated_tokens, &cancelled;
  metrics::Histogram &first_token_s, &request_s;

 private:
  metrics::Counter &shared_tokens_, &preemptions_, &drafted_tokens_, &accepted_tokens_, &failed_drafts_;
  metrics::Counter &adapter_loads_, &adapter_failures_, &adapter_evictions_, &reloads_, &failed_reloads_;
  metrics::Gauge &running_, &waiting_, &cache_blocks_used_, &cache_blocks_, &adapters_, &adapter_bytes_, &model_step_;
  Mutex raising_;  ///< held while counters are raised, so that two calls do not raise one twice
};

}  // namespace millrace::serve
