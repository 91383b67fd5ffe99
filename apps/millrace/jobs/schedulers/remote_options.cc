#include "apps/millrace/jobs/schedulers/remote_options.h"

#include "apps/millrace/doctor/doctor.h"
#include "millrace/base/hash/random.h"
#include "millrace/jobs/elastic.h"
#include "millrace/jobs/health/spot_watch.h"
#include "millrace/jobs/spec/foreign_program.h"
#include "millrace/jobs/training_setup.h"

namespace millrace::cli {
namespace {

/// Returns what the agents check before each attempt. The store is that of the data and the checkpoints.
jobs::HealthOptions HealthOptionsOf(const Context& context, const jobs::Spec& spec) {
  std::vector<std::string> urls = {spec.checkpoint.url, spec.model.from};
  for (const data::DataSource& source : spec.data.dataset.sources) urls.push_back(source.url);
  return jobs::HealthOptions{.checks = spec.run.health_checks,
                             .store = StoreEndpointUrl(context, urls),
                             .ca_bundle = context.globals.connect.ca_bundle,
                             .spot = spec.run.spot ? jobs::SpotWatch::DefaultEndpoint() : "",
                             .gpus = jobs::WantedGpus(spec)};
}

}  // namespace

std::map<std::string, std::string> RankEnvironment(const Context& context, const jobs::Spec& spec) {
  std::map<std::string, std::string> env = spec.run.env;
  env.merge(GlobalsEnvironment(context.globals));
  env["MILLRACE_RUN"] = SecureHex(8);
  return env;
}

Status FillRemoteOptions(const Context& context, const jobs::Spec& spec, jobs::RemoteLauncher::Options& options) {
  options.sizes = jobs::NodeCounts(spec);
  const auto fewest = static_cast<std::size_t>(options.sizes.back());
  const auto most = static_cast<std::size_t>(options.sizes.front()) + static_cast<std::size_t>(spec.run.spares);
  if (options.nodes.size() < fewest) {
    return Fail(Code::kPreconditionFailed, "the job needs {} nodes, but there are {}", fewest, options.nodes.size());
  }
  if (options.nodes.size() > most) options.nodes.resize(most);
  options.ranks_per_node = spec.run.processes_per_node;
  options.threads = spec.train.threads;
  options.health = HealthOptionsOf(context, spec);
  options.job = MR_TRY(jobs::OnNodes(spec, options.sizes.front())).Render();
  options.job_on = [spec](int nodes) -> Result<std::string> { return MR_TRY(jobs::OnNodes(spec, nodes)).Render(); };
  options.foreign = jobs::ForeignProgramOf(spec);
  options.env = RankEnvironment(context, spec);
  return {};
}

}  // namespace millrace::cli
