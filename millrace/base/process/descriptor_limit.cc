#include "millrace/base/process/descriptor_limit.h"

#include <sys/resource.h>

namespace millrace {

void RaiseDescriptorLimit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);  // raising it to the hard limit is always allowed
}

}  // namespace millrace
