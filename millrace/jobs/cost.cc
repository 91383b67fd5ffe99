#include "millrace/jobs/cost.h"

#include <fmt/format.h>

#include "millrace/base/result.h"

namespace millrace::jobs {

void CostMeter::Count(TimePoint now, std::size_t machines) {
  const double hours = std::chrono::duration<double, std::ratio<3600>>(now - last_).count();
  last_ = now;
  spent_ += hours * spec_.price_per_hour * static_cast<double>(machines);
}

std::string FormatCost(double amount, const std::string& currency) {
  return fmt::format("{:.{}f} {}", amount, amount != 0 && amount < 0.1 ? 4 : 2, currency);
}

}  // namespace millrace::jobs
