"""The arms of a race: child processes of pytest that collect a checkout's tests once and launch them on demand."""
