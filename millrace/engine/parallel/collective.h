// Collective operations on tensors.
#pragma once

#include "millrace/collectives/collective.h"
