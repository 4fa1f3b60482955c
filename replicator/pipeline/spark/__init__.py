"""What Spark itself needs: sessions, a Java runtime, packages for executors."""
