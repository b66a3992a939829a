// Which thread of a team this is, from 0 on. OpenMP's own header is not there wherever its library is.

#pragma once

extern "C" int omp_get_thread_num();
