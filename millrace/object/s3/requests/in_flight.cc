#include "millrace/object/s3/requests/in_flight.h"

namespace millrace::object::s3 {

InFlight::Ticket::Ticket(InFlight& owner, std::stop_token callers) : owner_(owner), token_(owner.all_.get_token()) {
  {
    MutexLock lock(owner_.mutex_);
    ++owner_.count_;
  }
  if (!callers.stop_possible()) return;
  std::stop_source either;
  token_ = either.get_token();
  from_caller_.emplace(std::move(callers), Forward{either});
  from_owner_.emplace(owner_.all_.get_token(), Forward{either});
}

InFlight::Ticket::~Ticket() {
  from_caller_.reset();
  from_owner_.reset();
  MutexLock lock(owner_.mutex_);
  if (--owner_.count_ == 0) owner_.ended_.NotifyAll();
}

void InFlight::CancelAll() {
  all_.request_stop();
  MutexLock lock(mutex_);
  while (count_ > 0) ended_.Wait(mutex_);
}

}  // namespace millrace::object::s3
