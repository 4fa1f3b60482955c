"""Do the clusters agree, message by message?"""
