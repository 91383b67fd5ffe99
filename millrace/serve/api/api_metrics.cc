#include "millrace/serve/api/api_metrics.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace millrace::serve {
namespace {

const std::vector<double> kSecondsBuckets = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100};

}  // namespace

ApiMetrics::ApiMetrics(metrics::Registry& registry)
    : prompt_tokens(registry.AddCounter("millrace_prompt_tokens_total", "Tokens of admitted prompts")),
      generated_tokens(registry.AddCounter("millrace_generated_tokens_total", "Tokens made")),
      cancelled(registry.AddCounter("millrace_requests_cancelled_total", "Requests whose client went away")),
      first_token_s(
          registry.AddHistogram("millrace_first_token_seconds", "From request to first token", kSecondsBuckets)),
      request_s(
          registry.AddHistogram("millrace_request_seconds", "From request to the end of its answer", kSecondsBuckets)),
      shared_tokens_(registry.AddCounter("millrace_shared_tokens_total",
                                         "Tokens that were in the KV cache and not computed again")),
      preemptions_(
          registry.AddCounter("millrace_preemptions_total", "Texts that gave up their blocks of the KV cache")),
      drafted_tokens_(registry.AddCounter("millrace_drafted_tokens_total", "Tokens guessed before they were computed")),
      accepted_tokens_(registry.AddCounter("millrace_accepted_tokens_total", "Guessed tokens that came true")),
      failed_drafts_(registry.AddCounter("millrace_failed_drafts_total", "Calls of the draft model that failed")),
      adapter_loads_(registry.AddCounter("millrace_adapter_loads_total", "Adapters loaded")),
      adapter_failures_(registry.AddCounter("millrace_adapter_failures_total", "Adapters that could not be loaded")),
      adapter_evictions_(
          registry.AddCounter("millrace_adapter_evictions_total", "Adapters that gave up their memory to others")),
      reloads_(registry.AddCounter("millrace_model_reloads_total", "Newer checkpoints that were taken")),
      failed_reloads_(
          registry.AddCounter("millrace_model_reload_failures_total", "Newer checkpoints that could not be served")),
      running_(registry.AddGauge("millrace_generations_running", "Texts the model works on")),
      waiting_(registry.AddGauge("millrace_generations_waiting", "Texts that wait for the model")),
      cache_blocks_used_(registry.AddGauge("millrace_cache_blocks_used", "Blocks of the KV cache that texts use")),
      cache_blocks_(registry.AddGauge("millrace_cache_blocks", "Blocks of the KV cache")),
      adapters_(registry.AddGauge("millrace_adapters", "Adapters in memory")),
      adapter_bytes_(registry.AddGauge("millrace_adapter_bytes", "Memory of adapters")),
      model_step_(registry.AddGauge("millrace_model_step", "Step of the checkpoint that new requests get")) {}

void ApiMetrics::Update(const ServedScheduler& scheduler, const ModelFollower* follower, const AdapterStore* adapters) {
  running_.Set(scheduler.running());
  waiting_.Set(scheduler.waiting());
  const auto raise = [](metrics::Counter& counter, std::uint64_t to) {
    counter.Add(to - std::min(to, counter.value()));
  };
  MutexLock lock(raising_);
  const SchedulerCounters counters = scheduler.counters();
  cache_blocks_used_.Set(counters.used_blocks);
  cache_blocks_.Set(counters.all_blocks);
  raise(shared_tokens_, counters.shared_tokens);
  raise(preemptions_, counters.preemptions);
  raise(drafted_tokens_, counters.drafted_tokens);
  raise(accepted_tokens_, counters.accepted_tokens);
  raise(failed_drafts_, counters.failed_drafts);
  if (follower != nullptr) {
    const FollowCounters followed = follower->counters();
    raise(reloads_, followed.reloads);
    raise(failed_reloads_, followed.failed_reloads);
    model_step_.Set(static_cast<double>(followed.step));
  }
  if (adapters == nullptr) return;
  const AdapterCounters counted = adapters->counters();
  raise(adapter_loads_, counted.loads);
  raise(adapter_failures_, counted.failed_loads);
  raise(adapter_evictions_, counted.evictions);
  adapters_.Set(counted.loaded);
  adapter_bytes_.Set(static_cast<double>(counted.bytes));
}

}  // namespace millrace::serve
