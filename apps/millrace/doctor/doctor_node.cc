// Whether this machine is fit for ranks.
#include <algorithm>

#include "apps/millrace/doctor/doctor.h"
#include "millrace/base/clock.h"
#include "millrace/jobs/health/node_checks.h"
#include "millrace/object/open/open.h"
#include "millrace/object/s3/settings/settings.h"

namespace millrace::cli {

std::string StoreEndpointUrl(const Context& context, const std::vector<std::string>& urls) {
  const auto environment = object::s3::Environment::System();
  const auto profiles = object::s3::Profiles::Load(environment);
  if (!profiles) return "";
  const auto settings = object::s3::Settings::Resolve(context.globals.connect, *profiles, environment);
  if (!settings) return "";
  const bool s3 = std::ranges::any_of(urls, [](const std::string& text) {
    const auto url = object::ParseUrl(text);
    return url && url->scheme == object::Url::Scheme::kS3;
  });
  return s3 || !settings->aws ? settings->AddressOf("", "", settings->region).Url("") : "";
}

Findings CheckThisNode(const Context& context, const Needs& needs) {
  const jobs::HealthOptions options{.store = StoreEndpointUrl(context, needs.urls),
                                    .ca_bundle = context.globals.connect.ca_bundle};
  return jobs::CheckNode(options, {}, SystemClock(), context.stop);
}

}  // namespace millrace::cli
